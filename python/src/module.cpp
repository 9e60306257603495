// The extension module gpufs._core: the host API with bytes for paths and plain numbers for
// options. Users import the package gpufs, which adds sizes, defaults and documentation. _core.pyi
// describes this module to type checkers.
#include <nanobind/nanobind.h>

#include <cstdlib>
#include <string_view>

#include "arrays.hpp"
#include "bench.hpp"
#include "collage.hpp"
#include "errors.hpp"
#include "grep.hpp"
#include "linear.hpp"
#include "machine.hpp"
#include "mount.hpp"
#include "search.hpp"

NB_MODULE(_core, m) {
  // An exit handler (gpufs/_mount.py) closes a mount that lives until the interpreter exits. Other
  // leaks at exit do not concern users, so the warnings are on only in tests.
  const char* const check_leaks = std::getenv("GPUFS_CHECK_LEAKS");
  nanobind::set_leak_warnings(check_leaks != nullptr && std::string_view(check_leaks) == "1");
  m.attr("__version__") = GPUFS_VERSION;
  m.attr("built_with") = GPUFS_BUILT_WITH;
  gpufs::python::translate_errors();
  gpufs::python::bind_machine(m);
  gpufs::python::bind_mount(m);
  gpufs::python::bind_arrays(m);
  gpufs::python::bind_collage(m);
  gpufs::python::bind_grep(m);
  gpufs::python::bind_linear(m);
  gpufs::python::bind_search(m);
  gpufs::python::bind_bench(m);
}

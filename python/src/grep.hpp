// The grep engine for Python: a search runs on a thread of its own, so that Python can show its
// progress and take Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_grep(nanobind::module_& m);

}  // namespace gpufs::python

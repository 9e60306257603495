// The grep engine for Python. A search runs on a thread of its own, so that Python can show
// progress and handle Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_grep(nanobind::module_& m);

}  // namespace gpufs::python

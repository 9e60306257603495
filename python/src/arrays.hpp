// The array engine for Python: open files, and device memory that Python's arrays own.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_arrays(nanobind::module_& m);

}  // namespace gpufs::python

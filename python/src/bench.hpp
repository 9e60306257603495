// The benchmark engine for Python. Each call makes one measurement, so that Python can show
// progress and handle Ctrl-C between two calls.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_bench(nanobind::module_& m);

}  // namespace gpufs::python

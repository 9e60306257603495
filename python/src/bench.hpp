// The benchmark engine for Python: each call makes one measurement, so that Python can show
// progress and take Ctrl-C between two.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_bench(nanobind::module_& m);

}  // namespace gpufs::python

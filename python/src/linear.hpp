// Bindings of apps/linear.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_linear(nanobind::module_& m);

}  // namespace gpufs::python

// gpufs/machine.hpp for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_machine(nanobind::module_& m);

}  // namespace gpufs::python

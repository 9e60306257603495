// Bindings of apps/collage.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_collage(nanobind::module_& m);

}  // namespace gpufs::python

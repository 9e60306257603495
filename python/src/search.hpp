// Bindings of apps/search.
#pragma once

#include <nanobind/nanobind.h>

namespace gpufs::python {

void bind_search(nanobind::module_& m);

}  // namespace gpufs::python

#pragma once

#include "linear/linear.hpp"
#include "tile/numbers.cuh"

namespace gpufs::linear {

// Calls `use` with a number of this type.
template <class Use>
void for_numbers_of(element type, const Use& use) {
  if (type == element::float32) use(float());
  else use(bfloat16());
}

}  // namespace gpufs::linear

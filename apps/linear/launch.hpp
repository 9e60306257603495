// Common host code of both products.
#pragma once

#include "job/job.hpp"
#include "linear/linear.hpp"
#include "tile/numbers.cuh"

namespace gpufs::linear {

// Launches a kernel for the plan's type of numbers.
template <template <class> class Kernel, class Plan, class... Rest>
void launch(const job::job& work, const Plan& plan, const Rest&... rest) {
  if (plan.type == element::float32) work.launch(Kernel<float>{{}, plan, rest...});
  else work.launch(Kernel<bfloat16>{{}, plan, rest...});
}

}  // namespace gpufs::linear

// Launches of this folder's kernels: the only part that nvcc has to compile.
#pragma once

#include "find_cuts.cuh"
#include "gpufs/gpufs.hpp"
#include "kernel.cuh"

namespace gpufs::grep {

// How much of the device a launch uses. `blocks` determines the per-block memory.
struct launch_size {
  std::uint32_t blocks;
  std::uint32_t threads;
};

// Both return when the kernel has ended. They throw gpufs::error (EIO) if it failed.
template <counted what>
void run_search(mount& m, const launch_size& size, const search_kernel<what>& kernel);
void run_find_cuts(mount& m, const launch_size& size, const find_cuts_kernel& kernel);

}  // namespace gpufs::grep

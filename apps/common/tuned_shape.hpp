// How kernels that wait for memory are compiled.
#pragma once

namespace gpufs {

// 64 registers: more warps are worth some spilled registers.
struct tuned_shape {
  static constexpr int block_threads_max = 256;
  static constexpr int blocks_per_multiprocessor = 4;
};

// 128 registers: for kernels that have few blocks, because each block holds much of the cache.
struct roomy_shape {
  static constexpr int block_threads_max = 256;
  static constexpr int blocks_per_multiprocessor = 2;
};

}  // namespace gpufs

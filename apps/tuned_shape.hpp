// How kernels that wait for memory are compiled.
#pragma once

namespace gpufs {

// In 64 registers: more warps are worth some spilled ones.
struct tuned_shape {
  static constexpr int block_threads_max = 256;
  static constexpr int blocks_per_multiprocessor = 4;
};

// In 128: of kernels that have few blocks, as each holds much of the cache.
struct roomy_shape {
  static constexpr int block_threads_max = 256;
  static constexpr int blocks_per_multiprocessor = 2;
};

}  // namespace gpufs

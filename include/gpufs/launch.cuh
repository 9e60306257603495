// Launches a kernel on a mount's device: on a GPU a CUDA launch; on the CPU device a pool of
// threads that runs the same functor once per block.
#pragma once

#include "gpufs/gpufs.cuh"
#include "gpufs/gpufs.hpp"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace gpufs {

struct launch_shape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 256;    // per block; the CPU device runs each block as one thread
  std::size_t scratch_bytes = 0;  // bytes per block, for block_group::scratch()
  void* stream = nullptr;         // cudaStream_t; ignored by the CPU device
  // Whether the kernel uses the copy engine (the bulk path), for which the service calls the CUDA
  // driver. If another thread keeps the driver busy until the kernel ends, for example by a copy to
  // pageable memory, the kernel loads page by page; it needs up to 200 ms to find that out. False
  // avoids this delay.
  bool bulk = true;
};

namespace detail {

// Runs `call(functor, fs)` once per block on the CPU device's threads. Returns when all have ended.
void run_on_cpu(mount& m, const launch_shape& shape,
                void (*call)(const void* functor, const mount_ref& fs), const void* functor);

#if defined(__CUDACC__)
// CUDA's launch bounds of a kernel: its own constants, or 1024 threads and 1 block per
// multiprocessor.
template <class Kernel>
constexpr int block_threads_max() {
  if constexpr (requires { Kernel::block_threads_max; }) return Kernel::block_threads_max;
  else return 1024;
}
template <class Kernel>
constexpr int blocks_per_multiprocessor() {
  if constexpr (requires { Kernel::blocks_per_multiprocessor; })
    return Kernel::blocks_per_multiprocessor;
  else return 1;
}

template <class Kernel>
__global__ void __launch_bounds__(block_threads_max<Kernel>(), blocks_per_multiprocessor<Kernel>())
    run_kernel(const __grid_constant__ Kernel kernel, const __grid_constant__ mount_ref fs) {
  kernel(fs);
}

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw error(EIO, std::string(what) + ": " + cudaGetErrorString(status));
}
#endif

}  // namespace detail

// Calls `kernel(fs)` in every thread of the launch. `Kernel` is trivially copyable and has
// `GPUFS_HD void operator()(const gpufs::mount_ref& fs) const`. It may have `static constexpr int
// block_threads_max` and `blocks_per_multiprocessor`, CUDA's launch bounds (default 1024 and 1).
//
// On a GPU the launch is asynchronous on `stream`; on the CPU device it returns when the kernel has
// ended. The mount must outlive the kernel. Throws gpufs::error if the launch fails; ENOTSUP if the
// mount is on a GPU and the caller was compiled by a plain C++ compiler.
template <class Kernel>
void launch(mount& m, const launch_shape& shape, const Kernel& kernel) {
  if (m.device() == device_kind::cpu) {
    detail::run_on_cpu(
        m, shape,
        [](const void* functor, const mount_ref& fs) {
          (*static_cast<const Kernel*>(functor))(fs);
        },
        &kernel);
    return;
  }
#if defined(__CUDACC__)
  const device_guard guard(m);
  if (shape.scratch_bytes > 48 * 1024) {
    detail::check(cudaFuncSetAttribute(detail::run_kernel<Kernel>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shape.scratch_bytes)),
                  "launch: scratch memory");
  }
  detail::run_kernel<Kernel>
      <<<shape.blocks, shape.threads, shape.scratch_bytes,
         static_cast<cudaStream_t>(shape.stream)>>>(kernel, m.ref(shape.bulk));
  detail::check(cudaGetLastError(), "launch");
#else
  throw error(ENOTSUP, "launch on a GPU: this program was compiled without nvcc");
#endif
}

}  // namespace gpufs

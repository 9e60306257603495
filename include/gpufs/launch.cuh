// Launches a kernel on a mount's device: on a GPU a CUDA launch; on the CPU device a pool of
// threads that runs the same functor once per block. gpufs.hpp declares the mount; a source that
// only has kernels and their launches compiles without it, and sooner.
#pragma once

#include "gpufs/gpufs.cuh"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace gpufs {

class mount;  // gpufs/gpufs.hpp

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

// Runs one block on a thread of the CPU device.
using cpu_block = void (*)(const void* functor, const mount_ref& fs);

// Starts the kernel on the current GPU. Returns null, or what failed.
using gpu_start = const char* (*)(const void* functor, mount& m, const launch_shape& shape);

// As mount::ref(). The last call before the kernel starts: CUDA may load a kernel when it is first
// named, which keeps the driver busy, and a service that waits for that takes the bulk path away.
mount_ref ref_for_launch(mount& m, bool bulk);

// Launches on the mount's device. `start` is null if the caller was compiled by a plain C++
// compiler. Compiled once, so that sources with kernels do not include the host API.
void launch(mount& m, const launch_shape& shape, const void* functor, cpu_block block,
            gpu_start start);

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

template <class Kernel>
const char* start_kernel(const void* functor, mount& m, const launch_shape& shape) {
  if (shape.scratch_bytes > 48 * 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.scratch_bytes));
    if (status != cudaSuccess) return cudaGetErrorString(status);
  }
  run_kernel<Kernel><<<shape.blocks, shape.threads, shape.scratch_bytes,
                       static_cast<cudaStream_t>(shape.stream)>>>(
      *static_cast<const Kernel*>(functor), ref_for_launch(m, shape.bulk));
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
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
  detail::gpu_start start = nullptr;
#if defined(__CUDACC__)
  start = detail::start_kernel<Kernel>;
#endif
  detail::launch(
      m, shape, &kernel,
      [](const void* functor, const mount_ref& fs) { (*static_cast<const Kernel*>(functor))(fs); },
      start);
}

}  // namespace gpufs

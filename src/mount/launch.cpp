// Launches. On the CPU device a thread pool runs the kernel once per block.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "base/host_threads.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "mount/cpu_launch.hpp"

namespace gpufs::detail {

namespace {

// Returns when all blocks have ended.
void run_on_cpu(mount& m, const launch_shape& shape, const void* functor, cpu_block block_of) {
  const cpu_launch running(m);
  const mount_ref fs = m.ref(shape.bulk);
  std::atomic<std::uint32_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;

  const auto run = [&](std::uint32_t processor) {
    try {
      // Like shared memory: uninitialized, and reused by one block after another.
      const auto scratch = std::make_unique<vector16[]>(
          (shape.scratch_bytes + sizeof(vector16) - 1) / sizeof(vector16) + 1);
      for (std::uint32_t block = next++; block < shape.blocks; block = next++) {
        platform::position_on_cpu() = {block, shape.blocks, processor,
                                       reinterpret_cast<char*>(scratch.get())};
        block_of(functor, fs);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };

  // The calling thread is part of the pool. So the launch runs even if the system creates fewer
  // threads than asked for, or none.
  const std::uint32_t threads = std::min(shape.blocks, m.options().cpu_threads);
  const auto before = platform::position_on_cpu();
  {
    host_threads pool;
    try {
      for (std::uint32_t t = 1; t < threads; ++t)
        pool.start("the CPU device", [&run, t] { run(t); });
    } catch (const error&) {
    } catch (const std::bad_alloc&) {
    }
    run(0);
  }
  platform::position_on_cpu() = before;
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace

mount_ref ref_for_launch(mount& m, bool bulk) { return m.ref(bulk); }

void launch(mount& m, const launch_shape& shape, const void* functor, cpu_block block,
            gpu_start start) {
  if (m.device() == device_kind::cpu) {
    run_on_cpu(m, shape, functor, block);
    return;
  }
  if (start == nullptr)
    throw error(ENOTSUP, "launch on a GPU: this program was compiled without nvcc");
  const device_guard guard(m);
  const char* const failure = start(functor, m, shape);
  if (failure != nullptr) throw error(EIO, std::string("launch: ") + failure);
}

}  // namespace gpufs::detail

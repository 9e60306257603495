// Launches on the CPU twin: a pool of threads that runs the kernel once per block.
#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpufs/launch.cuh"
#include "mount/twin_launch.hpp"

namespace gpufs::detail {

void run_on_twin(const mount& m, const launch_shape& shape, void (*call)(const void*, const mount_ref&),
                 const void* functor) {
  const twin_launch launch(m);
  const mount_ref fs = m.ref(shape.bulk);
  std::atomic<std::uint32_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;

  const auto run = [&](std::uint32_t processor) {
    try {
      // As shared memory: uninitialized, the same for one block after the other.
      const auto scratch =
          std::make_unique<vector16[]>((shape.scratch_bytes + sizeof(vector16) - 1) / sizeof(vector16) + 1);
      for (std::uint32_t block = next++; block < shape.blocks; block = next++) {
        platform::twin() = {block, shape.blocks, processor, reinterpret_cast<char*>(scratch.get())};
        call(functor, fs);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };

  const std::uint32_t threads = std::min(shape.blocks, m.options().twin_threads);
  std::vector<std::thread> pool;
  pool.reserve(threads);
  for (std::uint32_t t = 0; t < threads; ++t) pool.emplace_back(run, t);
  for (std::thread& t : pool) t.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace gpufs::detail

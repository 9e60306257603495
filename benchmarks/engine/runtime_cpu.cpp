// On the CPU device, device memory is host memory, so the copy engine is memcpy.
#include <cstdlib>
#include <cstring>

#include "engine/runtime.hpp"
#include "engine/stopwatch.hpp"

namespace gpufs::bench {
namespace {

class cpu_queue final : public runtime::queue {
 public:
  void copy(char* to, const char* from, std::uint64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void wait() override {}
};

class cpu_runtime final : public runtime {
 public:
  double seconds(const std::function<void()>& work) override {
    const stopwatch watch;
    work();  // launches on the CPU device return when the kernel has ended
    return watch.seconds();
  }
  std::unique_ptr<queue> make_queue() override { return std::make_unique<cpu_queue>(); }
  char* pin(std::uint64_t bytes) override {
    constexpr std::size_t host_page_bytes = 4096;
    char* const memory = static_cast<char*>(std::aligned_alloc(host_page_bytes, bytes));
    if (memory == nullptr) throw error(ENOMEM, "bench: " + std::to_string(bytes) + " bytes");
    std::memset(memory, 1, bytes);  // pinned memory is resident before its first use
    return memory;
  }
  void unpin(char* memory) noexcept override { std::free(memory); }
  const char* register_pages(char* mapped, std::uint64_t) override { return mapped; }
  void unregister_pages(char*) noexcept override {}
};

}  // namespace

std::unique_ptr<runtime> make_cpu_runtime() { return std::make_unique<cpu_runtime>(); }

std::unique_ptr<runtime> make_runtime(mount& m) {
#if GPUFS_WITH_CUDA
  if (m.device() == device_kind::cuda) return make_cuda_runtime(m);
#endif
  (void)m;  // without CUDA all mounts use the CPU device
  return make_cpu_runtime();
}

}  // namespace gpufs::bench

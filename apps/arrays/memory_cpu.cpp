#include <cstdlib>
#include <cstring>
#include <string>

#include "arrays/memory.hpp"

namespace gpufs::arrays {
namespace {

class done_event final : public device_memory::event {
 public:
  void record(void*) override {}
  void wait() override {}
  bool is_done() noexcept override { return true; }
  void hold_back(void*) override {}
};

class cpu_memory final : public device_memory {
 public:
  std::uint64_t id_of(void*) override { return 0; }
  void* own_stream() override { return nullptr; }
  void* background_stream() override { return nullptr; }
  void* allocate(std::uint64_t bytes, void*) override {
    void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
    if (memory == nullptr) throw error(ENOMEM, std::to_string(bytes) + " bytes of memory");
    return memory;
  }
  void free(void* memory, void*, bool) noexcept override { std::free(memory); }
  void* pin() override { return allocate(pinned_bytes, nullptr); }
  void unpin(void* memory) noexcept override { std::free(memory); }
  std::unique_ptr<event> make_event() override { return std::make_unique<done_event>(); }
  void* upload(const void* from, std::uint64_t bytes, void*) override {
    void* const to = allocate(bytes, nullptr);
    if (bytes != 0) std::memcpy(to, from, bytes);
    return to;
  }
  void check_address(const void*) override {}
  void copy_to_host(void* to, const void* from, std::uint64_t bytes, void*) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
};

}  // namespace

std::shared_ptr<device_memory> make_device_memory(mount& m) {
#if GPUFS_WITH_CUDA
  if (m.device() == device_kind::cuda) return make_cuda_memory(m);
#endif
  (void)m;
  return std::make_shared<cpu_memory>();
}

}  // namespace gpufs::arrays

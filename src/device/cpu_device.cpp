// The CPU device: plain host memory.
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/host_threads.hpp"
#include "device/device.hpp"
#include "gpufs/base/copy.cuh"
#include "gpufs/error.hpp"

namespace gpufs {
namespace {

char* map_zeroed(std::uint64_t bytes, const char* what) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw error(ENOMEM, std::string(what) + ": " + std::to_string(bytes) + " bytes");
  return static_cast<char*>(p);
}

class cpu_device final : public device {
 public:
  explicit cpu_device(unsigned threads) : threads_(threads) {}
  ~cpu_device() override { free_arena(); }
  cpu_device(const cpu_device&) = delete;
  cpu_device& operator=(const cpu_device&) = delete;

  std::string name() const override {
    return "CPU device, " + std::to_string(threads_) + " threads";
  }
  unsigned multiprocessors() const override { return threads_; }
  std::uint64_t free_bytes() const override {
    struct sysinfo info;
    return sysinfo(&info) == 0 ? std::uint64_t{info.freeram} * info.mem_unit : 0;
  }

  char* allocate_arena(std::uint64_t bytes) override {
    arena_ = map_zeroed(bytes, "page cache");
    arena_bytes_ = bytes;
    return arena_;
  }
  void free_arena() noexcept override {
    if (arena_ != nullptr) munmap(arena_, arena_bytes_);
    arena_ = nullptr;
  }

  shared_memory allocate_shared(std::uint64_t bytes) override {
    char* p = map_zeroed(bytes, "channel");
    return {p, p};
  }
  void free_shared(const shared_memory& memory, std::uint64_t bytes) noexcept override {
    munmap(memory.host, bytes);
  }
  shared_memory allocate_buffers(std::uint64_t bytes) override { return allocate_shared(bytes); }
  void free_buffers(const shared_memory& memory, std::uint64_t bytes) noexcept override {
    free_shared(memory, bytes);
  }

  // Direct copies use process_vm_readv (base/copy.cuh), which a container's policy may forbid.
  std::string direct_obstacle() const override {
    char from = 1;
    char to = 0;
    const iovec local{&to, 1};
    const iovec remote{&from, 1};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 && to == 1) return {};
    return std::string("process_vm_readv: ") + std::strerror(errno);
  }
  bool register_range(char* host, std::uint64_t, std::uint64_t& device_address) override {
    device_address = reinterpret_cast<std::uint64_t>(host);
    return true;
  }
  void unregister_range(char*) noexcept override {}
  // A copy from a mapping that is gone is a short copy (base/copy.cuh).
  bool unregistering_waits() const override { return false; }

  std::string bulk_obstacle() const override { return direct_obstacle(); }
  std::uint64_t bulk_bytes_min() const override { return 0; }
  // The kernel makes the copy, as for a direct load: the file may have been truncated under its
  // mapping.
  std::int64_t bulk_copy(unsigned, char* to, std::uint64_t from, std::uint64_t bytes, char*,
                         std::uint64_t) override {
    return static_cast<std::int64_t>(copy_from_extent(thread_group(), to, from, bytes));
  }

  // The call makes the copy. It waits for nobody, but takes time on a busy machine: with a
  // sanitizer and ten busy programs for two processors, 16 MiB took more than 100 ms.
  bulk_limits limits_of_bulk() const override { return {1'000'000'000, 1'000'000'000}; }
  bool bulk_copies_exclude() const override { return false; }

  void* allocate(std::size_t bytes) override {
    void* p = std::calloc(1, bytes == 0 ? 1 : bytes);
    if (p == nullptr) throw error(ENOMEM, "allocate: " + std::to_string(bytes) + " bytes");
    return p;
  }
  void free(void* memory) noexcept override { std::free(memory); }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void snapshot(std::uint64_t* to, const std::uint64_t* from, std::size_t words) override {
    for (std::size_t i = 0; i < words; ++i) to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
  }
  void synchronize() override {}
  // Sequentially consistent: an unmount stores `ended`, then reads launches_; a launch increments
  // launches_, then reads `ended`. So at least one of them sees the other's store.
  void begin_launch() noexcept override { ++launches_; }
  void end_launch() noexcept override { --launches_; }
  bool wait_idle(std::uint64_t timeout_ns) noexcept override {
    const deadline end = deadline::after(timeout_ns);
    while (launches_ != 0) {
      if (end.left_ns() == 0) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  int make_current() const override { return -1; }
  void restore(int) const noexcept override {}

 private:
  unsigned threads_;
  std::atomic<unsigned> launches_{0};
  char* arena_ = nullptr;
  std::uint64_t arena_bytes_ = 0;
};

}  // namespace

std::unique_ptr<device> make_cpu_device(unsigned threads) {
  return std::make_unique<cpu_device>(threads);
}

}  // namespace gpufs

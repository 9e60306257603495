// Mappings of files, of which a process may have so many (Linux: vm.max_map_count, 65,530 by default) that memory, threads and the driver
// get none when files have taken them. Who asks for one too many is told so, and does without.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

namespace gpufs {

class counted_mapping {
 public:
  static constexpr int most = 16'384;  // in all mounts together

  // Null where there are as many already, or the kernel refuses.
  static char* make(int fd, std::uint64_t bytes, std::uint64_t offset, int protection) noexcept {
    // Relaxed: a number, by which nothing else becomes known.
    if (count().fetch_add(1, std::memory_order_relaxed) < most) {
      void* const data = mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
      if (data != MAP_FAILED) return static_cast<char*>(data);
    }
    count().fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  static void end(char* data, std::uint64_t bytes) noexcept {
    (void)munmap(data, bytes);
    count().fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  static std::atomic<int>& count() {
    static std::atomic<int> n{0};
    return n;
  }
};

}  // namespace gpufs

// Limits the mappings of files. A process may have only so many mappings (Linux: vm.max_map_count,
// 65,530 by default). Without a limit, files could leave none for memory, threads and the driver. A
// caller past the limit gets null and does without a mapping. A process has 128 TiB of address
// space, and a mapped sparse file of 16 TiB costs the kernel nothing. But reads of a mapping create
// page tables, 4 KiB for each 2 MiB, which stay until the mapping ends, even after the pages have
// left memory.
//
// Any thread may call it. It has no locks; its counters are atomic.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

namespace gpufs {

enum class mapping_use {
  copies,  // a worker copies from or to it
  extents  // a range for the device; its bytes are bounded by the extents' budget
};

template <mapping_use use>
class counted_mapping {
 public:
  // In all mounts together.
  static constexpr int most = use == mapping_use::copies ? 16'384 : 32'768;
  // For copies: at most 1 GiB of page tables. Extents fault in pages only as far as their budget
  // goes.
  static constexpr std::uint64_t bytes_most =
      use == mapping_use::copies ? std::uint64_t{512} << 30 : std::uint64_t{16} << 40;

  // Maps a range of a file. Returns null past the limits, or when the kernel refuses.
  static char* make(int fd, std::uint64_t bytes, std::uint64_t offset, int protection) noexcept {
    if (bytes > bytes_most) return nullptr;
    // Relaxed: the counts order no other memory.
    const bool fits = count().fetch_add(1, std::memory_order_relaxed) < most;
    if (all_bytes().fetch_add(bytes, std::memory_order_relaxed) <= bytes_most - bytes && fits) {
      void* const data =
          mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
      if (data != MAP_FAILED) return static_cast<char*>(data);
    }
    forget(bytes);
    return nullptr;
  }
  static void end(char* data, std::uint64_t bytes) noexcept {
    (void)munmap(data, bytes);
    forget(bytes);
  }

 private:
  static void forget(std::uint64_t bytes) {
    count().fetch_sub(1, std::memory_order_relaxed);
    all_bytes().fetch_sub(bytes, std::memory_order_relaxed);
  }
  static std::atomic<int>& count() {
    static std::atomic<int> n{0};
    return n;
  }
  static std::atomic<std::uint64_t>& all_bytes() {
    static std::atomic<std::uint64_t> n{0};
    return n;
  }
};

using copy_mapping = counted_mapping<mapping_use::copies>;
using extent_mapping = counted_mapping<mapping_use::extents>;

}  // namespace gpufs

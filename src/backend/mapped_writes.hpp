// Writes to a file by copying into a mapping of it, instead of having the kernel copy.
//
// The kernel lets one thread at a time write to a file. A copy into a mapping takes no such turn,
// so several threads overwrite what is in the page cache faster than one. New pages are pwrite's:
// they come in large pieces then, where a mapping would make each by itself. The file is used in
// windows, as mapped_reads does:
//
//   all of the window in the page cache -> faulted in for writing, all at once -> for
//   `trusted_seconds` nobody asks again
//
// A large write in windows that are ready is a copy, guarded, and then a pwrite of the last bytes.
// Everything else is for pwrite: what makes the file longer; what is not in memory, as a mapping
// would read it first; and so are errors.
//
// The last bytes are written by pwrite after all others are there. By that the file gets its times,
// watchers their news and the file its mode without set-user-ID: as by any write, and not before
// its bytes. Who reads the file meanwhile sees old bytes or new ones, as with pwrite.
//
// A file that becomes shorter under the copy: what is missing is noticed (guarded_copy.hpp), and
// pwrite does it all again. Between the copy and the last bytes it is not: then these make the file
// long again, with zeros in front where a pwrite would have come as a whole before or after the
// truncation. Truncations through the same mount wait for such writes.
//
// Two errors come after the bytes: of files in memory that were sealed against later writes after
// they had been opened, and of writes behind the process's limit of a file's size.
//
// Only on tmpfs. On ext4 it was as fast, but to fault a page in for writing waits for the journal,
// and for a frozen file system, and holds the lock of all of the process's mappings meanwhile; it
// makes dirty, and so brings to the disk, what nobody wrote; and synchronous files would not be.
// What it costs: 8 bytes of page tables for each page that was written, until the file is closed;
// the pages count as the program's resident memory, though they stay the page cache's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace gpufs {

// Of one file. Thread-safe.
class mapped_writes {
 public:
  static constexpr std::uint64_t bytes_min = std::uint64_t{32}
                                             << 10;  // below, the steps cost more than they save
  static constexpr std::uint64_t tail_bytes = 64;

  // Null where the file is on another file system or does not reach to `end` yet, or copies cannot
  // be guarded.
  static std::unique_ptr<mapped_writes> make(int fd, std::uint64_t end) noexcept;
  ~mapped_writes();
  mapped_writes(const mapped_writes&) = delete;
  mapped_writes& operator=(const mapped_writes&) = delete;

  // True when all bytes but the last `tail_bytes` of them were written, which the caller has to
  // write now. Otherwise some may have been, and the caller writes them all. `fd`: of the calling
  // thread's table.
  [[nodiscard]] bool write(int fd, const char* from, std::uint64_t bytes,
                           std::uint64_t offset) noexcept;
  // Whether the last write went this way: then several threads that write at once are faster than
  // one.
  bool is_used() const noexcept { return is_used_.load(std::memory_order_relaxed); }

 private:
  // Parts of a file are mapped when they are first written, whether the file reaches there yet or
  // not.
  static constexpr std::uint64_t part_bytes = std::uint64_t{1} << 30;
  static constexpr std::size_t parts_max = 1024;
  static constexpr std::uint64_t window_bytes = std::uint64_t{1}
                                                << 20;  // smaller ones take as long in the kernel
  static constexpr std::uint32_t trusted_seconds = 8;

  struct part {
    char* data;
    // Of each window: `ready` and the second in which it was last seen in the page cache, or 0.
    std::array<std::atomic<std::uint32_t>, part_bytes / window_bytes> windows{};
    explicit part(char* mapped) : data(mapped) {}
    ~part();
    part(const part&) = delete;
    part& operator=(const part&) = delete;
  };
  static constexpr std::uint32_t ready = 0x8000'0000u;

  mapped_writes() = default;
  part* find_part(int fd, std::uint64_t number) noexcept;
  [[nodiscard]] static bool is_ready(part& of, std::uint64_t window, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool try_write(int fd, const char* from, std::uint64_t bytes,
                               std::uint64_t offset) noexcept;

  std::atomic<bool> is_used_{false};
  std::array<std::atomic<part*>, parts_max> parts_{};
};

}  // namespace gpufs

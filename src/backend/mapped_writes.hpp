// Writes to a file by copying into a mapping of it, without a copy in the kernel.
//
// The kernel lets one thread at a time write to a file. Copies into a mapping run in parallel, so
// several threads overwrite pages of the page cache faster than one. pwrite creates new pages: it
// creates them in large pieces, where a mapping would create each by itself. The file is used in
// windows, as in mapped_reads. A window becomes ready when all of it is in the page cache: then it
// is faulted in for writing, all at once, and stays ready for `trusted_seconds` without a check.
//
// A large write in ready windows is a guarded copy, followed by a pwrite of the last bytes. pwrite
// does everything else: writes that make the file longer, and writes to pages that are not in
// memory, which a mapping would first read. pwrite also reports the errors.
//
// The pwrite of the last bytes comes after all other bytes. It updates the file's times, notifies
// watchers and clears set-user-ID, as any write does, and not before the bytes are there. A reader
// meanwhile sees old or new bytes, as with pwrite.
//
// Truncation. If the file becomes shorter during the copy, the copy fails (guarded_copy.hpp), and
// pwrite writes all bytes again. If it becomes shorter between the copy and the last bytes, the
// last bytes make the file long again, with zeros before them. A single pwrite would have come as a
// whole before or after the truncation. Truncations through the same mount wait for such writes.
//
// Two errors come only after the bytes: for a memory file that was sealed against later writes
// after its open, and for a write past the process's file size limit.
//
// Only for tmpfs. Elsewhere a write fault may wait for the journal or for a frozen file system, it
// makes pages dirty that no call wrote, and it ignores a synchronous file's flag
// (docs/decisions/service.md).
//
// Cost: 8 bytes of page tables for each page that was written, until the file is closed. The pages
// count as the program's resident memory, although they belong to the page cache.
//
// Any thread may call it, and it has no locks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace gpufs {

// The mappings of one file. Thread-safe.
class mapped_writes {
 public:
  // For smaller writes the steps cost more than they save.
  static constexpr std::uint64_t bytes_min = std::uint64_t{32} << 10;
  static constexpr std::uint64_t tail_bytes = 64;

  // Returns null when the file is not on tmpfs or does not reach `end` yet, or copies cannot be
  // guarded. `fd`: a descriptor of the calling thread's table.
  static std::unique_ptr<mapped_writes> make(int fd, std::uint64_t end) noexcept;
  ~mapped_writes();
  mapped_writes(const mapped_writes&) = delete;
  mapped_writes& operator=(const mapped_writes&) = delete;

  // Returns true when all bytes except the last `tail_bytes` were written; the caller then writes
  // those with pwrite. Otherwise some bytes may have been written, and the caller writes all. `fd`:
  // a descriptor of the calling thread's table.
  [[nodiscard]] bool write(int fd, const char* from, std::uint64_t bytes,
                           std::uint64_t offset) noexcept;
  // Whether the last write was such a copy. Then several threads that write at once are faster than
  // one.
  bool is_used() const noexcept { return is_used_.load(std::memory_order_relaxed); }

 private:
  // A part of the file is mapped when it is first written, even past the end of the file.
  static constexpr std::uint64_t part_bytes = std::uint64_t{1} << 30;
  static constexpr std::size_t parts_max = 1024;
  // Smaller windows take as long in the kernel.
  static constexpr std::uint64_t window_bytes = std::uint64_t{1} << 20;
  static constexpr std::uint32_t trusted_seconds = 8;

  struct part {
    char* data;
    // For each window: `ready` plus the second in which it was last seen in the page cache, or 0.
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

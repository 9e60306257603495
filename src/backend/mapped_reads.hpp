// Reads a file that is in the page cache by copying from a mapping of it, without a system call for
// each read.
//
// A copy costs half of a pread, but a fault for each page would cost as much again. So pages are
// faulted in beforehand, many at a time, and only where the file is read often. The whole file is
// mapped, but used in windows:
//
//   counting -> ready    after `reads_before` reads, if the whole window is in the page cache; its
//                        pages are then faulted in
//   ready -> counting    when it was not seen in the page cache for `trusted_seconds` and is not
//                        there now, or when a page was missing
//
// When read() returns false, the caller uses pread, which reads ahead. Windows that are not ready
// are read this way.
//
// The result has the bytes that pread returns. If the file was truncated, its mapping lacks the
// same pages (guarded_copy.hpp), except for the page where the file ends: there the mapping shows
// zeros where pread returns fewer bytes. So a read counts only if its last byte is not zero after
// all bytes were copied: then the file still reached that far. Other reads are left to pread: one
// in 256 of random bytes, most reads of whole numbers of a fixed width. Two cases remain, in which
// ext4's pread can show zeros too: a file that is truncated and written again during the copy of
// these few kilobytes; and the page in which a truncated file ends, while Linux clears its end.
//
// Cost: 8 bytes of page tables for each page that was read, until the file is closed. The pages
// count as the program's resident memory, although they belong to the page cache.
//
// Any thread may call it. It has no locks and does not wait, except for page faults.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace gpufs {

// The mapping of one file. Thread-safe.
class mapped_reads {
 public:
  static constexpr std::uint64_t window_bytes = std::uint64_t{256} << 10;
  static constexpr std::uint64_t file_bytes_min = window_bytes;
  // Faulting in 64 pages costs as much as 10 to 20 reads.
  static constexpr std::uint32_t reads_before = 4;
  static constexpr std::uint32_t trusted_seconds = 8;

  // Returns null when the file cannot be mapped or is too small, or when copies cannot be guarded.
  static std::unique_ptr<mapped_reads> make(int fd) noexcept;
  ~mapped_reads();
  mapped_reads(const mapped_reads&) = delete;
  mapped_reads& operator=(const mapped_reads&) = delete;

  // Reads `bytes` bytes at `offset`. Returns true when all were read. Otherwise `to` may have been
  // written, and the caller uses pread.
  [[nodiscard]] bool read(char* to, std::uint64_t bytes, std::uint64_t offset) noexcept;
  // Announces a read: starts to load its bytes into the processor's caches.
  void expect(std::uint64_t bytes, std::uint64_t offset) const noexcept;

 private:
  // A window's state: the number of reads counted, 0 to reads_before; or `ready` plus the second in
  // which it was last seen in the page cache.
  static constexpr std::uint32_t ready = 0x8000'0000u;
  using window = std::atomic<std::uint32_t>;

  mapped_reads(char* data, std::uint64_t size, std::unique_ptr<window[]> windows);
  bool may_use(window& w, std::uint64_t number) noexcept;
  bool prepare(std::uint64_t number) const noexcept;

  char* const data_;
  const std::uint64_t size_;
  const std::unique_ptr<window[]> windows_;
};

}  // namespace gpufs

// Reads of a file that is in the page cache, by copying from a mapping of it instead of asking the
// kernel each time.
//
// The copy costs half of a pread; but a fault of each page would cost as much again. So pages are
// faulted in before, many at a time, and only where the file is read more than now and then: it is
// mapped whole, but used in windows:
//
//   counting -> ready    after `reads_before` reads, if all of it is in the page cache; its pages
//                        are faulted in
//   ready -> counting    when it was not seen in the page cache for `trusted_seconds` and is not
//                        now, or a page was missing
//
// Reads of windows that are not ready are for pread, which reads ahead; so is everything that
// read() says no to.
//
// The bytes are those that pread gives. What a truncated file lacks is missing from its mapping too
// (guarded_copy.hpp), but for the page that it ends in: there the mapping shows zeros where pread
// gives less. So a read counts only if its last byte is not zero after all bytes were copied: then
// the file has reached to there. (Unless it was truncated and written again during the copy of
// these few kilobytes; ext4's pread can show zeros then, too.) Other reads (one in 256 of random
// bytes, most of whole numbers of a fixed width) are for pread.
//
// What it costs: 8 bytes of page tables for each page that was read, until the file is closed; the
// pages count as the program's resident memory, though they stay the page cache's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace gpufs {

// Of one file. Thread-safe.
class mapped_reads {
 public:
  static constexpr std::uint64_t window_bytes = std::uint64_t{256} << 10;
  static constexpr std::uint64_t file_bytes_min = window_bytes;
  static constexpr std::uint32_t reads_before =
      4;  // faulting in 64 pages costs about 10 to 20 reads
  static constexpr std::uint32_t trusted_seconds = 8;

  // Null when the file cannot be mapped, is too small to be worth it, or copies cannot be guarded.
  static std::unique_ptr<mapped_reads> make(int fd) noexcept;
  ~mapped_reads();
  mapped_reads(const mapped_reads&) = delete;
  mapped_reads& operator=(const mapped_reads&) = delete;

  // True when all of it was read. Otherwise `to` may have been written, and pread is to be asked.
  [[nodiscard]] bool read(char* to, std::uint64_t bytes, std::uint64_t offset) noexcept;
  // This will be read soon: begins to bring it into the processor's caches.
  void expect(std::uint64_t bytes, std::uint64_t offset) const noexcept;

 private:
  // A window: 0 to reads_before, the reads counted; or `ready` and the second in which it was last
  // seen in the page cache.
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

// What the measured files hold, and in which order they are read.
#pragma once

#include "gpufs/cache/slot_state.cuh"

namespace gpufs::bench {

// Word i of 8 bytes. Every file holds the same endless row of words, from its start; so content
// checks itself, a page that is lost, doubled or taken for another is seen, and nothing on the way
// can profit from zeros or compress.
GPUFS_HD inline std::uint64_t word_at(std::uint64_t i) { return mix(i + 0x1234567); }

// Small files, by number: 1 to 27 KiB of words, 14 KiB on average, as source files are; each from a
// place of its own in the row.
GPUFS_HD inline std::uint64_t small_file_bytes(std::uint64_t number) {
  return 1024 + mix(number) % 3328 * 8;
}
GPUFS_HD inline std::uint64_t small_file_first_word(std::uint64_t number) { return number << 20; }

// A walk over [0, count), count a power of two: position(i) for i in [0, count) meets each number
// once. Which walk it is, is data, not code, so that one kernel serves all.
class order {
 public:
  GPUFS_HD std::uint64_t position(std::uint64_t i) const {
    std::uint64_t x = i;
    for (int round = 0; round < 2; ++round) {
      // An odd factor, an addition and a shifted exclusive-or are bijections of numbers of so many
      // bits.
      x = (x * factor_ + increment_) & mask_;
      x ^= x >> shift_;
    }
    return x;
  }

  // Without a pattern that a prefetcher could find.
  static order random(std::uint64_t count) {
    return {0x9e3779b97f4a7c15ull, 0x7f4a7c15, count - 1, 7};
  }
  static order forward(std::uint64_t count) { return {1, 0, count - 1, 63}; }

 private:
  order(std::uint64_t factor, std::uint64_t increment, std::uint64_t mask, std::uint32_t shift)
      : factor_(factor), increment_(increment), mask_(mask), shift_(shift) {}
  std::uint64_t factor_, increment_, mask_;
  std::uint32_t shift_;
};

}  // namespace gpufs::bench

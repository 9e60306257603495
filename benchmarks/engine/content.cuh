// The content of the measured files, and the order in which they are read.
#pragma once

#include "gpufs/cache/slot_state.cuh"

namespace gpufs::bench {

// Returns word i (8 bytes) of the content. Every file holds a prefix of the same endless sequence
// of words. So the content checks itself: a page that is lost, duplicated or exchanged is detected.
// Nothing on the path can profit from zeros or compression.
GPUFS_HD inline std::uint64_t word_at(std::uint64_t i) { return mix(i + 0x1234567); }

// Small files have numbers. Each has 1 to 27 KiB of words, 14 KiB on average, like source files.
// Each starts at its own place in the sequence.
GPUFS_HD inline std::uint64_t small_file_bytes(std::uint64_t number) {
  return 1024 + mix(number) % 3328 * 8;
}
GPUFS_HD inline std::uint64_t small_file_first_word(std::uint64_t number) { return number << 20; }

// A permutation of [0, count), where count is a power of two: position(i) for i in [0, count)
// returns each number once. The permutation is data, not code, so one kernel serves all orders.
class order {
 public:
  GPUFS_HD std::uint64_t position(std::uint64_t i) const {
    std::uint64_t x = i;
    for (int round = 0; round < 2; ++round) {
      // Multiplication by an odd factor, addition, and a shifted exclusive or are bijections of
      // numbers with this many bits.
      x = (x * factor_ + increment_) & mask_;
      x ^= x >> shift_;
    }
    return x;
  }

  // Has no pattern that a prefetcher could find.
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

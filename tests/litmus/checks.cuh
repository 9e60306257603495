// Checks of what litmus kernels read, and their counters. Plain functions, so that they are tested
// themselves.
#pragma once

#include "gpufs/base/atomic.cuh"
#include "gpufs/cache/slot_state.cuh"

namespace gpufs::testing::litmus {

// Counts reads, wrong reads, and readers that have ended.
struct read_counts {
  atomic_word<std::uint64_t> reads, wrong;
  atomic_word<std::uint32_t> ended;  // readers that have ended

  GPUFS_HD void add(bool right) {
    reads.add_relaxed(1);
    if (!right) wrong.add_relaxed(1);
  }
  // Whether readers are still active. Writers continue as long as it is true; each loop has its own
  // bound, too.
  GPUFS_HD bool is_read(std::uint32_t readers) const { return ended.load_relaxed() < readers; }
};

// Four counters. One writer increases the first, then the second, and so on. At each moment the
// earlier counters are at most one ahead.
struct four_counters {
  std::uint32_t value[4];
};
GPUFS_HD constexpr bool are_in_turn(const four_counters& c) {
  const std::uint32_t first = c.value[0];
  bool ahead = false;  // whether a counter was found that the writer has not increased yet
  for (int i = 1; i < 4; ++i) {
    if (c.value[i] != first && c.value[i] + 1 != first) return false;
    if (ahead && c.value[i] == first) return false;
    ahead = ahead || c.value[i] != first;
  }
  return true;
}

// Pages whose content identifies their key. There are few keys, so that halves of two keys form a
// key too.
struct known_page {
  slot_key key;

  static constexpr std::uint32_t words = 64;
  GPUFS_HD static known_page number(std::uint64_t n) {
    const std::uint64_t h = mix(n + 1);
    return {{1 + (h & 3), 1 + (h >> 8 & 3)}};
  }
  // A multiple of 8, at most the whole page; different for each key.
  GPUFS_HD std::uint32_t valid() const {
    return static_cast<std::uint32_t>(words * 8 - 8 * ((key.high * 4 + key.low) & 31));
  }
  GPUFS_HD std::uint64_t word(std::uint32_t i) const {
    return mix((key.high * 1'000'003 + key.low) * words + i);
  }
};

// The fields of an open record as a function of its generation (file/open_files.cuh). An odd
// generation means: open.
struct known_file {
  std::uint32_t slot, generation;

  GPUFS_HD std::uint64_t version() const { return mix(generation * 64 + slot) >> 8; }
  GPUFS_HD std::uint64_t size() const { return mix(generation * 64 + slot + 1) >> 8; }
  GPUFS_HD std::uint64_t handle() const { return mix(generation * 64 + slot + 2); }
};

// The words that device and host exchange.
GPUFS_HD inline std::uint64_t known_word(std::uint32_t slot, std::uint32_t round, std::uint32_t i) {
  return mix((std::uint64_t{round} << 32 | slot << 16) + i);
}

// A word with equal halves, stored as one.
GPUFS_HD constexpr std::uint64_t twice(std::uint32_t half) {
  return std::uint64_t{half} << 32 | half;
}
GPUFS_HD constexpr bool is_whole(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32) == static_cast<std::uint32_t>(word);
}

}  // namespace gpufs::testing::litmus

// What kernels do with the bytes that they read. Timed kernels sum them up; checking kernels
// compare them.
#pragma once

#include "engine/content.cuh"
#include "gpufs/base/copy.cuh"

namespace gpufs::bench {

// Results of a kernel for the host. Zeroed before a launch.
struct tally {
  atomic_word<std::uint64_t> wrong_bytes;
  atomic_word<std::uint64_t> sum;  // written only so that the compiler keeps the reads
};

GPUFS_HD inline std::uint64_t fold(const vector16& v) {
  return (std::uint64_t{v.x} << 32 | v.y) ^ (std::uint64_t{v.z} << 32 | v.w);
}

// Returns the exclusive or of what one member of a group reads of a chunk. Eight loads are in
// flight, as in a good hand-written kernel. The measured kernel and its limit must read in the same
// way, so both use this.
template <class Group>
GPUFS_HD std::uint64_t sum_of(const Group& g, const char* data, std::uint64_t bytes) {
  const auto* v = reinterpret_cast<const vector16*>(data);
  const std::uint64_t n = bytes / sizeof *v;
  const std::uint64_t members = g.size();
  std::uint64_t sum = 0;
  std::uint64_t i = g.rank();
  for (; i + 7 * members < n; i += 8 * members) {
    vector16 part[8];
    GPUFS_UNROLL
    for (int k = 0; k < 8; ++k) part[k] = v[i + members * k];
    GPUFS_UNROLL
    for (int k = 0; k < 8; ++k) sum ^= fold(part[k]);
  }
  for (; i < n; i += members) sum ^= fold(v[i]);
  return sum;
}

struct adding {
  static constexpr bool compares = false;
  std::uint64_t total = 0;
  template <class Group>
  GPUFS_HD void take(const Group& g, const char* data, std::uint64_t bytes, std::uint64_t) {
    total ^= sum_of(g, data, bytes);
  }
  GPUFS_HD void take_word(std::uint64_t word, std::uint64_t) { total ^= word; }
  // Returns a word that depends on all bytes that were taken.
  GPUFS_HD std::uint64_t made() const { return total; }
  GPUFS_HD void finish(tally* t) const {
    if (total == 1) t->sum.store_relaxed(total);
  }
};

struct comparing {
  static constexpr bool compares = true;
  std::uint64_t wrong_bytes = 0;
  // `first_word`: the number, in the file, of the first word of `data`. `bytes` is a whole number
  // of words.
  template <class Group>
  GPUFS_HD void take(const Group& g, const char* data, std::uint64_t bytes,
                     std::uint64_t first_word) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(data);
    for (std::uint64_t w = g.rank(); w < bytes / 8; w += g.size())
      take_word(words[w], first_word + w);
  }
  GPUFS_HD void take_word(std::uint64_t word, std::uint64_t number) {
    if (word != word_at(number)) wrong_bytes += 8;
  }
  GPUFS_HD std::uint64_t made() const { return wrong_bytes; }
  GPUFS_HD void finish(tally* t) const {
    if (wrong_bytes != 0) t->wrong_bytes.add_relaxed(wrong_bytes);
  }
};

}  // namespace gpufs::bench

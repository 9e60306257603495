// Arithmetic that several applications need.
#pragma once

#include "gpufs/base/group.cuh"

namespace gpufs {

// How many `d` there are in `n`, a part of one counted as one.
GPUFS_HD constexpr std::uint64_t ceiling(std::uint64_t n, std::uint64_t d) {
  return n / d + (n % d != 0 ? 1 : 0);
}

// The sum of the members' values, in their order of halves, the same in all of them; or of those in
// a team: `members` neighbours, a power of two. (warp_group::sum() is of whole numbers.)
template <class T>
GPUFS_HD T sum_of(const warp_group& g, T value, std::uint32_t members) {
  for (std::uint32_t k = members / 2; k != 0; k /= 2) value += g.from(value, g.rank() ^ k);
  return value;
}
template <class T>
GPUFS_HD T sum_of(const warp_group& g, T value) {
  return sum_of(g, value, g.size());
}

}  // namespace gpufs

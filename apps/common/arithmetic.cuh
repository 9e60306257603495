// Arithmetic that several applications need.
#pragma once

#include "gpufs/base/group.cuh"

namespace gpufs {

// Returns n / d, rounded up.
GPUFS_HD constexpr std::uint64_t ceiling(std::uint64_t n, std::uint64_t d) {
  return n / d + (n % d != 0 ? 1 : 0);
}

// Collective of a warp. Returns the sum of the members' values to all members, added in the order
// of halves. With `members`: the sum in each team of that many adjacent members, a power of two.
// (warp_group::sum() is for integers.)
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

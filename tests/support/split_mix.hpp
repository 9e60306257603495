// Pseudo-random numbers from a seed.
#pragma once

#include <cstdint>

namespace gpufs::testing {

// Returns the next number. `state` is initially the seed. SplitMix64 (Steele, Lea, Flood 2014).
inline std::uint64_t split_mix(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace gpufs::testing

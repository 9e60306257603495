// Synthetic tiles, for measurements.
#pragma once

#include <cstdint>

#include "collage/layout.hpp"

namespace gpufs::collage {

// Makes tile `number` of this seed: two colours, mostly pale, with an edge between them, a gradient
// and noise. Each is mostly weak and sometimes strong, so that the tiles are distributed as
// unevenly as those of photographs.
void make_synthetic_tile(std::uint64_t seed, std::uint64_t number, std::uint8_t* picture);

// Pseudo-random numbers: each from the state before it (SplitMix64).
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e37'79b9'7f4a'7c15;
    z = (z ^ z >> 30) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ z >> 27) * 0x94d0'49bb'1331'11eb;
    return z ^ z >> 31;
  }

 private:
  std::uint64_t state_;
};

}  // namespace gpufs::collage

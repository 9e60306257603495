// The arithmetic of collages. All in integers, so that all implementations make the same collage.
#pragma once

#include "collage/layout.hpp"

namespace gpufs::collage {

// Returns which histogram count a byte of a picture increases, if the byte belongs to this channel.
GPUFS_HD inline std::uint32_t bin_of(std::uint32_t channel, std::uint8_t value) {
  return channel * bins + value / (256 / bins);
}

// Returns an element of the feature from which keys are made: the sum over a group of bins of the
// cumulative histogram. It is finer than the value of a histogram with fewer bins.
GPUFS_HD inline std::uint16_t feature_element(const std::uint16_t* histogram, std::uint32_t i) {
  constexpr std::uint32_t group_bins = bins / groups;
  static_assert(group_bins * tile_side * tile_side < 1u << 16, "the sum is a uint16");
  std::uint32_t sum = 0;
  GPUFS_UNROLL
  for (std::uint32_t k = 0; k < group_bins; ++k) sum += histogram[i * group_bins + k];
  return static_cast<std::uint16_t>(sum);
}

// Returns the sum that a hash function compares with its threshold.
GPUFS_HD inline std::int32_t projection(const hash_function& f, const std::uint16_t* feature) {
  std::int32_t sum = 0;
  GPUFS_UNROLL
  for (const std::uint8_t term : f.terms) {
    const std::int32_t value = feature[term & (hash_function::negative - 1)];
    sum += (term & hash_function::negative) != 0 ? -value : value;
  }
  return sum;
}
GPUFS_HD inline std::uint32_t key_bit(const hash_function& f, const std::uint16_t* feature) {
  return projection(f, feature) > f.threshold ? 1 : 0;
}

// Returns what two pairs of histogram values add to the distance: the sum of their differences.
// Summed over a channel, this is the earth mover's distance of the two distributions, in bins.
GPUFS_HD inline std::uint32_t pair_distance(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  // No borrow goes from one difference to the other. The product with two ones is their sum.
  return __dp2a_lo(__vmaxu2(a, b) - __vminu2(a, b), 0x0101u, 0u);
#else
  const std::uint32_t x = a & 0xffff, y = b & 0xffff, z = a >> 16, w = b >> 16;
  return (x < y ? y - x : x - y) + (z < w ? w - z : z - w);
#endif
}
// The same for two words of four values each.
GPUFS_HD inline std::uint32_t word_distance(std::uint64_t a, std::uint64_t b) {
  return pair_distance(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)) +
         pair_distance(static_cast<std::uint32_t>(a >> 32), static_cast<std::uint32_t>(b >> 32));
}
inline constexpr std::uint32_t histogram_words = histogram_bytes / sizeof(std::uint64_t);
inline constexpr std::uint32_t histogram_vectors = histogram_bytes / sizeof(vector16);

// A tile and its distance. The least choice is the best: the nearest tile, and of equally near
// tiles the one with the smallest number.
GPUFS_HD inline std::uint64_t choice_of(std::uint32_t distance, std::uint32_t tile) {
  return std::uint64_t{distance} << 32 | tile;
}
GPUFS_HD inline std::uint32_t tile_of(std::uint64_t choice) {
  return static_cast<std::uint32_t>(choice);
}
GPUFS_HD inline std::uint32_t distance_of(std::uint64_t choice) {
  return static_cast<std::uint32_t>(choice >> 32);
}
inline constexpr std::uint64_t no_choice = ~std::uint64_t{0};

// Returns the only candidate of a block whose buckets are all empty. `key`: that of the first
// table.
GPUFS_HD inline std::uint32_t tile_instead(std::uint32_t key, std::uint64_t tiles) {
  return static_cast<std::uint32_t>(key % tiles);
}

}  // namespace gpufs::collage

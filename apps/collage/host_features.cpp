#include "collage/host_features.hpp"

#include <algorithm>

namespace gpufs::collage {

void make_histogram(const std::uint8_t* picture, std::uint64_t stride, std::uint16_t* histogram) {
  // Two counts, alternating: adjacent pixels are often alike, and a count waits for the last
  // addition to itself.
  std::uint16_t counts[2][histogram_length] = {};
  for (std::uint32_t row = 0; row < tile_side; ++row) {
    const std::uint8_t* p = picture + row * stride;
    for (std::uint32_t column = 0; column < tile_side; column += 2, p += 2 * channels) {
      for (std::uint32_t c = 0; c < channels; ++c) {
        ++counts[0][bin_of(c, p[c])];
        ++counts[1][bin_of(c, p[channels + c])];
      }
    }
  }
  for (std::uint32_t c = 0; c < channels; ++c) {
    std::uint32_t sum = 0;
    for (std::uint32_t i = c * bins; i < (c + 1) * bins; ++i) {
      sum += std::uint32_t{counts[0][i]} + counts[1][i];
      histogram[i] = static_cast<std::uint16_t>(sum);
    }
  }
}

feature make_feature(const std::uint16_t* histogram) {
  feature made;
  for (std::uint32_t i = 0; i < feature_length; ++i) made[i] = feature_element(histogram, i);
  return made;
}

std::uint32_t make_key(const hash_function* functions, std::uint32_t bits, const feature& of) {
  std::uint32_t key = 0;
  for (std::uint32_t b = 0; b < bits; ++b) key |= key_bit(functions[b], of.data()) << b;
  return key;
}

}  // namespace gpufs::collage

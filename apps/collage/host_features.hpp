// The arithmetic of features.hpp for whole pictures, by one thread of the host.
#pragma once

#include <array>

#include "collage/features.hpp"

namespace gpufs::collage {

using feature = std::array<std::uint16_t, feature_length>;

// The rows of the picture are `stride` bytes apart.
void make_histogram(const std::uint8_t* picture, std::uint64_t stride, std::uint16_t* histogram);
feature make_feature(const std::uint16_t* histogram);
// `functions`: those of the key's table.
std::uint32_t make_key(const hash_function* functions, std::uint32_t bits, const feature& of);

}  // namespace gpufs::collage

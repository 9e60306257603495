// How a search cuts files into parts. Blocks take the parts one by one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpufs/base/limits.hpp"
#include "grep.hpp"

namespace gpufs::grep {

// Small enough to balance the load, large enough that the open of a part does not matter.
inline constexpr std::uint64_t part_bytes_min = std::uint64_t{128} << 10;
inline constexpr std::uint64_t part_bytes_max = std::uint64_t{1} << 20;
inline constexpr std::uint64_t parts_per_block = 8;

// Limit for one search, besides one part for each file. A part takes about 70 bytes of host memory,
// and sparse files may have any size.
inline constexpr std::uint64_t parts_max = std::uint64_t{1} << 20;

inline std::uint64_t part_bytes_for(std::uint64_t all_bytes, std::uint32_t blocks) {
  const std::uint64_t even = std::clamp(all_bytes / (std::uint64_t{blocks} * parts_per_block),
                                        part_bytes_min, part_bytes_max);
  return std::max(even, all_bytes / parts_max + (all_bytes % parts_max != 0 ? 1 : 0));
}

// Returns the bytes of a file that are divided into parts. 0 for files that are too large to be
// opened: either `size_hint` is wrong or the open fails, and one part serves both cases.
inline std::uint64_t bytes_to_share(const file_item& file) {
  return file.size_hint < limits::file_bytes_max ? file.size_hint : 0;
}

// Saturating addition.
inline std::uint64_t add_bytes(std::uint64_t a, std::uint64_t b) {
  return a + b < a ? ~std::uint64_t{0} : a + b;
}

// At least 1.
inline std::uint64_t count_parts(std::uint64_t bytes, std::uint64_t part_bytes) {
  return std::max<std::uint64_t>(1, (bytes + part_bytes - 1) / part_bytes);
}

}  // namespace gpufs::grep

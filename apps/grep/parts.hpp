// How a search's files are cut into parts, which blocks take one by one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpufs/base/limits.hpp"
#include "grep.hpp"

namespace gpufs::grep {

// Small enough to share out evenly, large enough that a part's opens do not show.
inline constexpr std::uint64_t part_bytes_min = std::uint64_t{128} << 10;
inline constexpr std::uint64_t part_bytes_max = std::uint64_t{1} << 20;
inline constexpr std::uint64_t parts_per_block = 8;

// Of a search, besides one of each file: a part takes the host about 70 bytes, and sparse files may
// have any size.
inline constexpr std::uint64_t parts_max = std::uint64_t{1} << 20;

inline std::uint64_t part_bytes_for(std::uint64_t all_bytes, std::uint32_t blocks) {
  const std::uint64_t even = std::clamp(all_bytes / (std::uint64_t{blocks} * parts_per_block),
                                        part_bytes_min, part_bytes_max);
  return std::max(even, all_bytes / parts_max + (all_bytes % parts_max != 0 ? 1 : 0));
}

// The bytes of a file that are shared out. None where it is too large to be opened: what
// `size_hint` says is then wrong, or the open fails, and one part does for both.
inline std::uint64_t bytes_to_share(const file_item& file) {
  return file.size_hint < limits::file_bytes_max ? file.size_hint : 0;
}

// The sum, or the largest number.
inline std::uint64_t add_bytes(std::uint64_t a, std::uint64_t b) {
  return a + b < a ? ~std::uint64_t{0} : a + b;
}

// At least 1.
inline std::uint64_t count_parts(std::uint64_t bytes, std::uint64_t part_bytes) {
  return std::max<std::uint64_t>(1, (bytes + part_bytes - 1) / part_bytes);
}

}  // namespace gpufs::grep

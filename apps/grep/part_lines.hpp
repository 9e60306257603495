// How many lines of a text have a match, computed part by part.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs::grep {

// The counts of one part of a text. A part may begin and end inside a line. An empty part is all
// zeros.
struct part_lines {
  std::uint64_t count = 0;  // lines with a match in this part; below 2^61
  bool first = false;       // the line in which the part begins is one of them
  bool last = false;        // the line in which the part ends is one of them
  bool ends = false;        // a line ends in the part

  // Appends the next part. A line across the border counts once.
  GPUFS_HD constexpr void append(const part_lines& next) {
    count += next.count - (last && next.first ? 1 : 0);
    first = first || (!ends && next.first);
    last = next.last || (!next.ends && last);
    ends = ends || next.ends;
  }

  GPUFS_HD constexpr std::uint64_t pack() const {
    return count << 3 | (first ? 1u : 0u) | (last ? 2u : 0u) | (ends ? 4u : 0u);
  }
  GPUFS_HD static constexpr part_lines unpack(std::uint64_t packed) {
    return {packed >> 3, (packed & 1) != 0, (packed & 2) != 0, (packed & 4) != 0};
  }
  constexpr bool operator==(const part_lines&) const = default;
};

}  // namespace gpufs::grep

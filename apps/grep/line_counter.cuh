// Counts the lines of a window that have a match. As in grep -c, a line ends at a newline or a NUL.
#pragma once

#include "matcher.cuh"
#include "part_lines.hpp"

namespace gpufs::grep {

// Bit i of word k is byte 32 k + i of the window. No byte is both, because a match contains no end
// of a line.
struct line_memory {
  std::uint32_t matches[window_segments];  // where matches begin
  std::uint32_t ends[window_segments];
  atomic_word<std::uint32_t> count;
};

// Bit i is set if byte i ends a line.
GPUFS_HD constexpr std::uint32_t line_ends(std::uint64_t text) {
  return byte_bits(zero_bytes(text) | zero_bytes(text ^ eightfold('\n')));
}

// Collective. Returns the counts of [from, to) of the window to all members. from < to. The
// window's masks must be filled.
GPUFS_HD inline part_lines count_lines(const block_group& g, const matcher& m,
                                       const std::uint64_t* text, line_memory& memory,
                                       std::uint32_t from, std::uint32_t to) {
  const std::uint32_t first = from / segment_bytes;
  const std::uint32_t last = (to - 1) / segment_bytes;
  for (std::uint32_t k = first + g.rank(); k <= last; k += g.size()) {
    std::uint32_t ends = 0;
    for (std::uint32_t i = 0; i < segment_bytes / 8; ++i)
      ends |= line_ends(text[k * (segment_bytes / 8) + i]) << 8 * i;
    memory.ends[k] = ends & bits_within(k, from, to);
    memory.matches[k] = m.matches_in(k);
  }
  // Relaxed, as all accesses to the counter: barriers separate its uses.
  if (g.is_leader()) memory.count.store_relaxed(0);
  g.sync();

  for (std::uint32_t k = first + g.rank(); k <= last; k += g.size()) {
    std::uint32_t matches = memory.matches[k];
    if (matches == 0) continue;
    std::uint32_t ends = memory.ends[k];
    std::uint32_t lines = 0;
    // The line in which the segment begins may have a match before the segment.
    if (ends == 0 || lowest_bit(matches) < lowest_bit(ends)) {
      std::uint32_t before = k;
      while (before > first && (memory.matches[before - 1] | memory.ends[before - 1]) == 0)
        --before;
      // Of the last match and the last line end before it, the later one has the higher bit.
      if (before > first && memory.matches[before - 1] > memory.ends[before - 1]) --lines;
    }
    while (matches != 0) {
      ++lines;
      const std::uint32_t up_to_match = (matches & (0 - matches)) - 1;
      ends &= ~up_to_match;
      if (ends == 0) break;
      matches &= ~((ends & (0 - ends)) - 1);
    }
    if (lines != 0) memory.count.fetch_add_relaxed(lines);
  }
  part_lines found;
  for (std::uint32_t k = first; k <= last && !found.ends; ++k) {
    const std::uint32_t matches = memory.matches[k];
    const std::uint32_t ends = memory.ends[k];
    found.ends = ends != 0;
    if (matches != 0 && (ends == 0 || lowest_bit(matches) < lowest_bit(ends))) found.first = true;
  }
  for (std::uint32_t k = last + 1; k > first; --k) {
    if ((memory.matches[k - 1] | memory.ends[k - 1]) == 0) continue;
    found.last = memory.matches[k - 1] > memory.ends[k - 1];
    break;
  }
  g.sync();
  found.count = memory.count.load_relaxed();
  return found;
}

}  // namespace gpufs::grep

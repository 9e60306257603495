// The messages from kernels to the host. A message is one gsend of at most the channel's staging
// bytes, so it arrives whole. It is a sequence of sections: each is a `section` followed by `count`
// `word_count`s.
#pragma once

#include <cstdint>

namespace gpufs::grep {

inline constexpr std::uint64_t no_nul = ~std::uint64_t{0};

enum class section_kind : std::uint32_t {
  counts,  // some of an item's counts; more may follow, also of the same words
  done     // the end of the item, with the rest of its counts
};

struct section {
  std::uint32_t item;   // index into the launch's list of work items
  std::uint32_t count;  // number of word_counts that follow
  section_kind kind;
  std::int32_t error;   // done: 0, or the errno that ended the item
  std::uint64_t bytes;  // done: bytes read
  // done: the offset of the item's first NUL, or no_nul. When lines are counted: part_lines,
  // packed. For an item of find_cuts: the cut.
  std::uint64_t offset;
};
static_assert(sizeof(section) == 32,
              "sections and counts are packed without gaps, aligned to 8 bytes");

struct word_count {
  std::uint32_t word;
  std::uint32_t count;
};
static_assert(sizeof(word_count) == 8, "the same");

// Messages stay below this size even if staging slots are larger, because a block's message buffer
// is device memory.
inline constexpr std::uint32_t message_bytes_max = 16384;

}  // namespace gpufs::grep

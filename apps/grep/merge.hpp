// Counts of parts of files to counts of files; and orders of files, in which they are shared out
// and told.
#pragma once

#include "grep.hpp"
#include "report.hpp"

namespace gpufs::grep {

// Some of a file's counts, each word once. Several may be of one file, with the same words.
struct file_counts {
  std::uint32_t file;
  std::uint32_t count;
  word_count* first;
};

// The numbers of the files, sorted by their paths; of equal ones the first comes first.
std::vector<std::uint32_t> order_by_path(const std::vector<file_item>& files);

// The numbers of the files: first those that are larger than a part, the largest at the front, so
// that no large one is left for the end.
std::vector<std::uint32_t> order_large_first(const std::vector<file_item>& files,
                                             std::uint64_t part_bytes);

// Adds up all counts by file and word. Sorted as `files_by_path`, a permutation of the files, then
// by word. `words` is the dictionary's size. Sorts what `all` points at.
match_list merge_counts(const std::vector<file_counts>& all,
                        const std::vector<std::uint32_t>& files_by_path, std::size_t words);

}  // namespace gpufs::grep

// Merges counts of parts into counts of files. Also the orders in which files are searched and
// reported.
#pragma once

#include "grep.hpp"
#include "report.hpp"

namespace gpufs::grep {

// Some of a file's counts, without duplicate words. Several lists may belong to one file and have
// the same words.
struct file_counts {
  std::uint32_t file;
  std::uint32_t count;
  word_count* first;
};

// Returns the numbers of the files, sorted by path. Equal paths keep their order.
std::vector<std::uint32_t> order_by_path(const std::vector<file_item>& files);

// Returns the numbers of the files: first those that are larger than a part, largest first, so that
// no large file is left for the end.
std::vector<std::uint32_t> order_large_first(const std::vector<file_item>& files,
                                             std::uint64_t part_bytes);

// Adds up all counts by file and word. The result is in the order of `files_by_path` (a permutation
// of the files), then by word. `words` is the dictionary's size. Sorts the arrays that `all` points
// to.
match_list merge_counts(const std::vector<file_counts>& all,
                        const std::vector<std::uint32_t>& files_by_path, std::size_t words);

}  // namespace gpufs::grep

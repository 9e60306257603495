// Counts of items to counts of files.
#pragma once

#include "collect.hpp"
#include "grep.hpp"

namespace gpufs::grep {

// What one launch sent, and of which files it counts.
struct count_source {
  const collector* collected;
  const std::vector<std::uint32_t>* file_of_item;
  std::vector<char> wanted;  // by file
};

// Adds up all counts of wanted files by file and word. Sorted as `files_by_path`, a permutation of the files, then by
// word. `words` is the dictionary's size. Sorts what the collectors hold.
match_list merge_counts(const std::vector<count_source>& sources, const std::vector<std::uint32_t>& files_by_path,
                        std::size_t words);

}  // namespace gpufs::grep

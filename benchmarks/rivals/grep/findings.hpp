// What threads of the programs without gpufs find, and how it becomes the result.
#pragma once

#include <vector>

#include "grep/merge.hpp"
#include "rivals/grep/files.hpp"

namespace gpufs::grep {

// A match of a word that can overlap itself. Which of these count is decided when all are known.
struct word_place {
  std::uint32_t file;
  std::uint32_t word;
  std::uint64_t at;  // offset in the file
};

// The findings of one thread.
struct findings {
  struct section {
    std::uint32_t file;
    std::uint32_t count;
    std::size_t begin;  // index into `counts`
  };
  std::vector<word_count> counts;
  std::vector<section> sections;  // each without duplicate words
  std::vector<word_place> places;
  std::uint64_t bytes = 0;  // bytes read
};

// Makes the result for all files. `first`: findings in files without a NUL, and some in other
// files. `late`: findings in the counted parts of files with a late NUL.
result put_together(const dictionary& d, const std::vector<file_item>& files,
                    const file_states& states, std::vector<findings>&& first,
                    std::vector<findings>&& late);

}  // namespace gpufs::grep

// What threads of the programs without gpufs find, and the result that is made of it.
#pragma once

#include <vector>

#include "merge.hpp"
#include "rival_files.hpp"

namespace gpufs::grep {

// A match of a word that can overlap itself; which of these count is known when all are there.
struct word_place {
  std::uint32_t file;
  std::uint32_t word;
  std::uint64_t at;  // offset in the file
};

// Of one thread.
struct findings {
  struct section {
    std::uint32_t file;
    std::uint32_t count;
    std::size_t begin;  // in `counts`
  };
  std::vector<word_count> counts;
  std::vector<section> sections;  // each word once in each
  std::vector<word_place> places;
  std::uint64_t bytes = 0;  // read
};

// Of all files: `first` is what was found in files without a NUL, and something in others; `late`
// what was found in those parts of files with a late NUL that count.
result put_together(const dictionary& d, const std::vector<file_item>& files,
                    const file_states& states, std::vector<findings>&& first,
                    std::vector<findings>&& late);

}  // namespace gpufs::grep

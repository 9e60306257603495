// Programs without gpufs, for comparison. Both find what search() finds, also in binary files.
//
// They search files up to the size that they had when they were listed: `size_hint` must be their
// size.
#pragma once

#include "grep/grep.hpp"

namespace gpufs::grep {

struct rival_result {
  result found;
  double seconds;  // without what a program makes once: buffers, and the dictionary's table
};

// The result has the failures of single files.

// A program for the CPU. Threads with their own descriptor tables read files into memory that stays
// in the second-level cache. Vector instructions classify word characters. `chunk_bytes`: size of a
// read.
rival_result search_on_host(const dictionary& d, const std::vector<file_item>& files,
                            unsigned threads, std::uint64_t chunk_bytes);

// A CUDA program. Each thread reads files into two pinned buffers of `chunk_bytes`: many small
// files, or a part of a large file. It fills one while the other is copied and searched. The CPU
// searches only files with a late NUL, and chunks with more matches than there is room for. ENOTSUP
// if it was built without CUDA.
rival_result search_by_pipeline(const dictionary& d, const std::vector<file_item>& files,
                                unsigned threads, std::uint64_t chunk_bytes);

}  // namespace gpufs::grep

// What one would write without gpufs, to be compared with. Both find what search() finds, also in
// binary files.
//
// Files are searched as far as they went when they were listed: `size_hint` has to be their size.
#pragma once

#include "grep.hpp"

namespace gpufs::grep {

struct rival_result {
  result found;
  double seconds;  // without what a program makes once: buffers, and the dictionary's table
};

// Failures of single files are in the result.

// A program for the CPU: files are read into memory that stays in the second cache, by threads with
// descriptors of their own; word characters are told by vectors. `chunk_bytes`: read at a time.
rival_result search_on_host(const dictionary& d, const std::vector<file_item>& files,
                            unsigned threads, std::uint64_t chunk_bytes);

// A CUDA program: threads that read files into pinned buffers of `chunk_bytes`, two each, many
// small files or a part of a large one into each; one is filled while the other is copied and
// searched. Only files with a late NUL, and chunks with more matches than there is room for, are
// searched by the CPU. ENOTSUP where it was built without CUDA.
rival_result search_by_pipeline(const dictionary& d, const std::vector<file_item>& files,
                                unsigned threads, std::uint64_t chunk_bytes);

}  // namespace gpufs::grep

// What one would write without gpufs, to be compared with (TOCS 6.2.1). Both find what search()
// finds.
#pragma once

#include <vector>

#include "search/search.hpp"

namespace gpufs::search {

struct rival_result {
  std::vector<found> lists;
  double seconds;  // without what a program allocates once
};

// A program for the CPU: mapped files, all cores, vectors; float32 products with a bound of their
// error, and float64 for what may be near enough. Throws gpufs::error with a path.
rival_result search_on_host(const question& q, unsigned threads);

// A CUDA program: threads that read pieces of the databases into pinned buffers, two each, one of
// which is filled while the other is copied and looked through. ENOTSUP where it was built without
// CUDA.
rival_result search_by_pipeline(const question& q, unsigned threads, std::uint64_t piece_bytes);

}  // namespace gpufs::search

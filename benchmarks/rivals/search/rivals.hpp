// Programs without gpufs, for comparison (TOCS 6.2.1). Both find what search() finds.
#pragma once

#include <vector>

#include "search/search.hpp"

namespace gpufs::search {

struct rival_result {
  std::vector<found> lists;
  double seconds;  // without what a program allocates once
};

// A program for the CPU: mapped files, all cores, vector instructions. It computes float32 products
// with an error bound, and float64 distances for candidates. Throws gpufs::error with a path.
rival_result search_on_host(const question& q, unsigned threads);

// A CUDA program. Each thread reads pieces of the databases into two pinned buffers: it fills one
// while the other is copied and searched. ENOTSUP if it was built without CUDA.
rival_result search_by_pipeline(const question& q, unsigned threads, std::uint64_t piece_bytes);

}  // namespace gpufs::search

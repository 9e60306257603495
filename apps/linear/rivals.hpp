// What one would write without gpufs, to be compared with (TOCS 6.1.4). Both compute what matvec() computes, from files into host
// memory.
#pragma once

#include <vector>

#include "linear/linear.hpp"

namespace gpufs::linear {

struct rival_result {
  std::vector<float> product;
  double seconds;  // without what a program allocates once
};

// A program for the CPU: mapped files, all cores, vectors. Throws gpufs::error with a path.
rival_result matvec_on_host(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                            const array_file& vector, unsigned threads);

// A CUDA program: threads that read pieces into pinned buffers, two each, one of which is filled while the other is copied and
// multiplied. ENOTSUP where it was built without CUDA.
rival_result matvec_by_pipeline(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                                const array_file& vector, unsigned threads, std::uint64_t piece_bytes);

}  // namespace gpufs::linear

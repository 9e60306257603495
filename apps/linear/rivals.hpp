// What one would write without gpufs, to be compared with (TOCS 6.1.4, 6.1.5).
#pragma once

#include <vector>

#include "linear/linear.hpp"

namespace gpufs::linear {

struct rival_result {
  std::vector<float> product;
  double seconds;  // without what a program allocates once
};

// Both compute what matvec() computes, into host memory.

// A program for the CPU: mapped files, all cores, vectors. Throws gpufs::error with a path.
rival_result matvec_on_host(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                            const array_file& vector, unsigned threads);

// A CUDA program: threads that read pieces into pinned buffers, two each, one of which is filled
// while the other is copied and multiplied. ENOTSUP where it was built without CUDA.
rival_result matvec_by_pipeline(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                                const array_file& vector, unsigned threads,
                                std::uint64_t piece_bytes);

// Both compute what matmul() computes, into a file that is there, from its begin. They return
// seconds, without what a program allocates once.

// A program for the CPU: mapped files, the right matrix packed once, float32 sums of a block of
// rows in the caches and in registers. Throws gpufs::error with a path.
double matmul_on_host(const matmul_files& files, unsigned threads);

// A CUDA program: the right matrix is packed on the device; then threads read bands of rows into
// pinned buffers, two each, one of which is filled, or its product written, while the other is
// copied, multiplied with the same tiles as matmul()'s, and copied back. ENOTSUP where it was built
// without CUDA.
double matmul_by_pipeline(const matmul_files& files, unsigned threads, std::uint64_t band_rows);

}  // namespace gpufs::linear

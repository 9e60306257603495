// Programs without gpufs, for comparison (TOCS 6.1.4, 6.1.5).
#pragma once

#include <vector>

#include "linear/linear.hpp"

namespace gpufs::linear {

struct rival_result {
  std::vector<float> product;
  double seconds;  // without what a program allocates once
};

// Both functions compute what matvec() computes, into host memory.

// A program for the CPU: mapped files, all cores, vector instructions. Throws gpufs::error with a
// path.
rival_result matvec_on_host(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                            const array_file& vector, unsigned threads);

// A CUDA program. Each thread reads pieces into two pinned buffers: it fills one while the other is
// copied and multiplied. ENOTSUP if it was built without CUDA.
rival_result matvec_by_pipeline(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                                const array_file& vector, unsigned threads,
                                std::uint64_t piece_bytes);

// Both functions compute what matmul() computes, into an existing file, from its start. They return
// seconds, without what a program allocates once.

// A program for the CPU: mapped files; the right matrix is packed once; the float32 sums of a block
// of rows are in the caches and in registers. Throws gpufs::error with a path.
double matmul_on_host(const matmul_files& files, unsigned threads);

// A CUDA program. It packs the right matrix on the device. Then each thread reads bands of rows
// into two pinned buffers: it fills one, or writes its product, while the other is copied,
// multiplied with the tiles of matmul(), and copied back. ENOTSUP if it was built without CUDA.
double matmul_by_pipeline(const matmul_files& files, unsigned threads, std::uint64_t band_rows);

}  // namespace gpufs::linear

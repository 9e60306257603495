// Linear algebra on files: kernels that read matrices and vectors by themselves, and write what they compute (TOCS 6.1.4, 6.1.5).
#pragma once

#include <cstdint>
#include <string>

#include "gpufs/gpufs.hpp"

namespace gpufs::linear {

enum class element : std::uint32_t { float32, bfloat16 };

// Numbers in a file, row by row.
struct array_file {
  std::string path;
  std::uint64_t offset = 0;  // bytes in front of the first; a multiple of an element's size
  element type = element::float32;
};

// out[out_offset + 4 * i] = sum over k of matrix[i][k] * vector[k], in float32, for `rows` rows of `columns` each. Of equal sums in
// whatever run the bits are equal on one device. The file `out` is there; what else is in it stays. Waits.
// `alone`: no other thread of the process calls the CUDA driver meanwhile, so the copy engine may bring the matrix (launch_shape::bulk).
// Throws gpufs::error: with a path what its file gave, ENODATA if it is shorter than it should be; without one EINVAL for what cannot
// be (no rows, another type of vector, offsets that are no multiples), ENOMEM, EIO for what the device gave.
void matvec(const mount& m, const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
            const array_file& vector, const std::string& out, std::uint64_t out_offset, bool alone);

// out[out_offset + 4 * (i * columns + j)] = sum over k of a[i][k] * b[k][j], in float32, for a of `rows` rows of `depth` and b of `depth`
// rows of `columns` (TOCS 6.1.5). By matrix units: of float32 numbers in six products of bfloat16 parts, which is as good as float32's own. b
// must have room in the GPU's memory beside the cache, one and a half times as large if it is float32. The rest as matvec().
void matmul(const mount& m, const array_file& a, std::uint64_t rows, std::uint64_t depth, const array_file& b,
            std::uint64_t columns, const std::string& out, std::uint64_t out_offset, bool alone);

}  // namespace gpufs::linear

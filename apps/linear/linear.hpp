// Linear algebra on files: kernels that read matrices and vectors by themselves, and write what
// they compute (TOCS 6.1.4, 6.1.5).
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

// A matrix of `rows` rows of `columns` numbers each, a vector of as many, and where their product
// goes.
struct matvec_files {
  array_file matrix;
  std::uint64_t rows, columns;
  array_file vector;
  std::string out;
  std::uint64_t out_offset = 0;
};

// A matrix of `rows` rows of `depth` numbers each, one of `depth` rows of `columns`, and where
// their product goes.
struct matmul_files {
  array_file left;
  std::uint64_t rows, depth;
  array_file right;
  std::uint64_t columns;
  std::string out;
  std::uint64_t out_offset = 0;
};

// out[out_offset + 4 * i] = sum over k of matrix[i][k] * vector[k], in float32. Of equal sums in
// whatever run the bits are equal on one device. The file `out` is there; what else is in it stays.
// Waits. `alone`: no other thread of the process calls the CUDA driver meanwhile, so the copy
// engine may bring the matrix (launch_shape::bulk). Throws gpufs::error: with a path what its file
// gave, ENODATA if it is shorter than it should be; without one EINVAL for what cannot be (no rows,
// another type of vector, offsets that are no multiples), ENOMEM, EIO for what the device gave.
void matvec(const mount& m, const matvec_files& files, bool alone);

// out[out_offset + 4 * (i * columns + j)] = sum over k of left[i][k] * right[k][j], in float32
// (TOCS 6.1.5). By matrix units: of float32 numbers in six products of bfloat16 parts, about as
// near as sums of float32 products are. The right matrix must have room in the GPU's memory beside
// the cache, one and a half times as large if it is float32. The rest as matvec().
void matmul(const mount& m, const matmul_files& files, bool alone);

}  // namespace gpufs::linear

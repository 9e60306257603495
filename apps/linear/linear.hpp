// Linear algebra on files: kernels read matrices and vectors from their files, and write the
// product to its file (TOCS 6.1.4, 6.1.5).
#pragma once

#include <cstdint>
#include <string>

#include "gpufs/gpufs.hpp"

namespace gpufs::linear {

enum class element : std::uint32_t { float32, bfloat16 };

// Numbers in a file, row by row.
struct array_file {
  std::string path;
  std::uint64_t offset = 0;  // bytes before the first number; a multiple of an element's size
  element type = element::float32;
};

// A matrix of `rows` rows of `columns` numbers each, a vector of `columns` numbers, and the file of
// their product.
struct matvec_files {
  array_file matrix;
  std::uint64_t rows, columns;
  array_file vector;
  std::string out;
  std::uint64_t out_offset = 0;
};

// A matrix of `rows` rows of `depth` numbers each, a matrix of `depth` rows of `columns` numbers,
// and the file of their product.
struct matmul_files {
  array_file left;
  std::uint64_t rows, depth;
  array_file right;
  std::uint64_t columns;
  std::string out;
  std::uint64_t out_offset = 0;
};

// out[out_offset + 4 * i] = sum over k of matrix[i][k] * vector[k], in float32. On one device,
// repeated calls give the same bits. The file `out` must exist; its other bytes stay. Waits.
// `alone`: no other thread of the process calls the CUDA driver meanwhile, so the copy engine may
// load the matrix (launch_shape::bulk).
//
// Throws gpufs::error. With a path: the file's error, ENODATA if it is too short. Without a path:
// EINVAL for impossible arguments (no rows, different types, unaligned offsets), ENOMEM, EIO for an
// error of the device.
void matvec(mount& m, const matvec_files& files, bool alone);

// out[out_offset + 4 * (i * columns + j)] = sum over k of left[i][k] * right[k][j], in float32
// (TOCS 6.1.5). Computed by matrix units. For float32 numbers these compute six products of
// bfloat16 parts, about as exact as sums of float32 products. The right matrix must fit into the
// GPU's memory besides the cache; a float32 matrix takes one and a half times its size there.
// Otherwise like matvec().
void matmul(mount& m, const matmul_files& files, bool alone);

}  // namespace gpufs::linear

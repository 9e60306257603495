// What is rejected before any file is opened.
#pragma once

#include <cerrno>

#include "gpufs/base/limits.hpp"
#include "gpufs/base/platform.cuh"
#include "linear/linear.hpp"

namespace gpufs::linear {

GPUFS_HD constexpr std::uint64_t bytes_of(element type) {
  return type == element::float32 ? sizeof(float) : 2;
}

// Throws EINVAL for a matrix or a place that is impossible.
inline void check_matrix(std::uint64_t rows, std::uint64_t columns, std::uint64_t number_bytes,
                         std::uint64_t offset) {
  if (rows == 0 || columns == 0) throw error(EINVAL, "a matrix without numbers");
  if (offset % number_bytes != 0)
    throw error(EINVAL, "an offset that is no multiple of a number's size");
  if (offset > limits::file_bytes_max ||
      rows > (limits::file_bytes_max - offset) / number_bytes / columns)
    throw error(EINVAL, "a matrix that is larger than files are");
}

inline void check_types(const array_file& a, const array_file& b) {
  if (b.type != a.type) throw error(EINVAL, "matrices or vectors of different types");
}

}  // namespace gpufs::linear

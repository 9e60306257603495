// What is refused before anything is opened.
#pragma once

#include <cerrno>

#include "gpufs/base/limits.hpp"
#include "gpufs/base/platform.cuh"
#include "linear/linear.hpp"

namespace gpufs::linear {

GPUFS_HD constexpr std::uint64_t bytes_of(element type) { return type == element::float32 ? sizeof(float) : 2; }

// Of a matrix that there cannot be.
inline void check_size(std::uint64_t rows, std::uint64_t columns, std::uint64_t number_bytes) {
  if (rows == 0 || columns == 0) throw error(EINVAL, "a matrix without numbers");
  if (rows > limits::file_bytes_max / number_bytes / columns)
    throw error(EINVAL, "a matrix that is larger than files are");
}

inline void check_offsets(const array_file& a, const array_file& b, std::uint64_t out_offset) {
  if (b.type != a.type) throw error(EINVAL, "matrices or vectors of different types");
  if (a.offset % bytes_of(a.type) != 0 || b.offset % bytes_of(b.type) != 0 || out_offset % sizeof(float) != 0)
    throw error(EINVAL, "an offset that is no multiple of a number's size");
}

}  // namespace gpufs::linear

/** The product of two square matrices of integers modulo 2^32, for kernels. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/matrix_tile.hpp"

namespace gdev_bench {

/** Returns where the result of this thread stands in a matrix. */
__device__ inline std::size_t own_element(std::size_t side) {
  return (std::size_t{blockIdx.y} * tile + threadIdx.y) * side + std::size_t{blockIdx.x} * tile +
         threadIdx.x;
}

/** Returns the element of a * b at own_element(). All threads of a block call it. */
__device__ inline std::uint32_t product_element(const std::uint32_t* a, const std::uint32_t* b,
                                                std::size_t side) {
  __shared__ std::uint32_t a_tile[tile][tile];
  __shared__ std::uint32_t b_tile[tile][tile];
  const unsigned x = threadIdx.x;
  const unsigned y = threadIdx.y;
  const std::size_t row = std::size_t{blockIdx.y} * tile + y;
  const std::size_t column = std::size_t{blockIdx.x} * tile + x;
  std::uint32_t sum = 0;
  for (std::size_t first = 0; first < side; first += tile) {
    a_tile[y][x] = a[row * side + first + x];
    b_tile[y][x] = b[(first + y) * side + column];
    __syncthreads();
    for (unsigned k = 0; k < tile; ++k) {
      sum += a_tile[y][k] * b_tile[k][x];
    }
    __syncthreads();
  }
  return sum;
}

}  // namespace gdev_bench

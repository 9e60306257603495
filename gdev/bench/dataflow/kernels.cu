// What the modules of a dataflow compute, as PTX. simulated/kernels.cpp does the same.
//
// All elements get `salt` added: it differs from round to round, so a matrix that a module left
// from another round makes the result wrong.
#include "bench/matrix_product.cuh"

extern "C" __global__ void gdev_matrix_add(const std::uint32_t* a, const std::uint32_t* b,
                                           std::uint32_t* c, std::uint64_t side,
                                           std::uint32_t salt) {
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < side * side;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    c[i] = a[i] + b[i] + salt;
  }
}

/** side: a multiple of the tile's. */
extern "C" __global__ void gdev_matrix_multiply(const std::uint32_t* a, const std::uint32_t* b,
                                                std::uint32_t* c, std::uint64_t side,
                                                std::uint32_t salt) {
  c[gdev_bench::own_element(side)] = gdev_bench::product_element(a, b, side) + salt;
}

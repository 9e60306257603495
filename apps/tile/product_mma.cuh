// The product of two tiles (product.cuh) with instructions of single warps and numbers in
// registers. For any GPU of compute capability 8.0 and later. A warp makes 64 x 32 sums.
#pragma once

#include "tile/slice.cuh"

namespace gpufs::tile {

class mma_product {
 public:
  static constexpr bool is_inlined = false;
  GPUFS_HD explicit mma_product(char*) {}

  template <int Parts>
  GPUFS_HD void start(const char* a, const char* b) {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::uint32_t a_row = warp / warps_across * warp_rows + lane % 16, a_eight = lane / 16;
    const std::uint32_t b_row = warp % warps_across * warp_columns + lane % 8 + lane / 16 * 8,
                        b_eight = lane / 8 % 2;
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < depth / 16; ++k) {
      GPUFS_UNROLL
      for (int q = 0; q < Parts; ++q) {
        std::uint32_t right[columns_across / 2][4];
        GPUFS_UNROLL
        for (std::uint32_t n = 0; n < columns_across / 2; ++n)
          load(right[n], b + q * slice_bytes + place_in_slice(b_row + n * 16, k * 2 + b_eight));
        GPUFS_UNROLL
        for (int p = 0; p + q < Parts; ++p) {
          GPUFS_UNROLL
          for (std::uint32_t m = 0; m < rows_down; ++m) {
            std::uint32_t left[4];
            load(left, a + p * slice_bytes + place_in_slice(a_row + m * 16, k * 2 + a_eight));
            GPUFS_UNROLL
            for (std::uint32_t n = 0; n < columns_across; ++n)
              multiply(sums_[m][n], left, right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
          }
        }
      }
    }
  }
  GPUFS_HD void finish() {}
  GPUFS_HD void clear() {
    GPUFS_UNROLL
    for (auto& row : sums_) {
      GPUFS_UNROLL
      for (auto& four : row) {
        GPUFS_UNROLL
        for (float& sum : four) sum = 0;
      }
    }
  }
  GPUFS_HD void add(const mma_product& part) {
    GPUFS_UNROLL
    for (std::uint32_t m = 0; m < rows_down; ++m) {
      GPUFS_UNROLL
      for (std::uint32_t n = 0; n < columns_across; ++n) {
        GPUFS_UNROLL
        for (std::uint32_t i = 0; i < 4; ++i) sums_[m][n][i] += part.sums_[m][n][i];
      }
    }
  }
  GPUFS_HD static void stored() {}

  template <class Take>
  GPUFS_HD void each(const Take& take) const {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::uint32_t row = warp / warps_across * warp_rows + lane / 4;
    const std::uint32_t column = warp % warps_across * warp_columns + lane % 4 * 2;
    GPUFS_UNROLL
    for (std::uint32_t m = 0; m < rows_down; ++m) {
      GPUFS_UNROLL
      for (std::uint32_t n = 0; n < columns_across; ++n) {
        GPUFS_UNROLL
        for (std::uint32_t i = 0; i < 4; ++i)
          take(row + m * 16 + i / 2 * 8, column + n * 8 + i % 2, sums_[m][n][i]);
      }
    }
  }

 private:
  static constexpr std::uint32_t warps_across = 4, warp_columns = side / warps_across;
  static constexpr std::uint32_t warp_rows = side / (threads / 32 / warps_across);
  static constexpr std::uint32_t rows_down = warp_rows / 16, columns_across = warp_columns / 8;

  GPUFS_HD static void load(std::uint32_t (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from)))
                 : "memory");
  }
  GPUFS_HD static void multiply(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  float sums_[rows_down][columns_across][4] = {};
};

}  // namespace gpufs::tile

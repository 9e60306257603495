// The product of two tiles of bfloat16 numbers, by the matrix units of a GPU. A block multiplies slice by slice: `depth` numbers of each
// of the `side` rows of one tile with those of the other. What differs between a GPU and its twin is here: the twin multiplies the sum
// of a number's parts, which is the number, in float32.
#pragma once

#include "gpufs/base/group.cuh"
#include "tile/numbers.cuh"

namespace gpufs::tile {

inline constexpr std::uint32_t side = 128;     // rows of a tile
inline constexpr std::uint32_t depth = 32;     // of their numbers that are multiplied at a time
inline constexpr std::uint32_t threads = 256;  // of a block
inline constexpr std::uint32_t slice_bytes = side * depth * sizeof(bfloat16);

// Where eight numbers of a row lie in a slice. Rows of 64 bytes, in each two rows another order of their quarters: so eight rows'
// quarters, which a matrix unit loads together, lie in different banks of shared memory.
GPUFS_HD constexpr std::uint32_t place_in_slice(std::uint32_t row, std::uint32_t eight) {
  return row * (depth * sizeof(bfloat16)) + ((eight ^ (row >> 1 & 3)) * 16);
}

// The sums of the products of each row of one tile with each of the other: side x side, each thread of a block some of them.
class product {
 public:
  // Of memory only the twin needs, `memory_bytes`, in its scratch memory.
  static constexpr std::size_t twin_memory_bytes = sizeof(float) * side * side;
  GPUFS_HD explicit product([[maybe_unused]] char* memory) {
#if !defined(__CUDA_ARCH__)
    sums_ = reinterpret_cast<float*>(memory);
    for (std::uint32_t i = 0; i < side * side; ++i) sums_[i] = 0;
#endif
  }

  // Adds the product of two slices, each in `Parts` parts that lie behind one another. Of parts the products are left out that float32
  // does not see. By all threads of a block, whose memory it is.
  template <int Parts>
  GPUFS_HD void add(const char* a, const char* b) {
#if defined(__CUDA_ARCH__)
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::uint32_t a_row = warp / warps_across * warp_rows + lane % 16, a_eight = lane / 16;
    const std::uint32_t b_row = warp % warps_across * warp_columns + lane % 8 + lane / 16 * 8, b_eight = lane / 8 % 2;
#pragma unroll
    for (std::uint32_t k = 0; k < depth / 16; ++k) {
#pragma unroll
      for (int q = 0; q < Parts; ++q) {
        std::uint32_t right[columns_across / 2][4];
#pragma unroll
        for (std::uint32_t n = 0; n < columns_across / 2; ++n)
          load(right[n], b + q * slice_bytes + place_in_slice(b_row + n * 16, k * 2 + b_eight));
#pragma unroll
        for (int p = 0; p + q < Parts; ++p) {
#pragma unroll
          for (std::uint32_t m = 0; m < rows_down; ++m) {
            std::uint32_t left[4];
            load(left, a + p * slice_bytes + place_in_slice(a_row + m * 16, k * 2 + a_eight));
#pragma unroll
            for (std::uint32_t n = 0; n < columns_across; ++n)
              multiply(sums_[m][n], left, right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
          }
        }
      }
    }
#else
    static thread_local float right[depth][side];
    for (std::uint32_t n = 0; n < side; ++n)
      for (std::uint32_t k = 0; k < depth; ++k) right[k][n] = whole<Parts>(b, n, k);
    for (std::uint32_t m = 0; m < side; ++m)
      for (std::uint32_t k = 0; k < depth; ++k) {
        const float left = whole<Parts>(a, m, k);
        for (std::uint32_t n = 0; n < side; ++n) sums_[m * side + n] += left * right[k][n];
      }
#endif
  }

  // Calls `take(row of a, row of b, sum)` for the thread's sums.
  template <class Take>
  GPUFS_HD void each(const Take& take) const {
#if defined(__CUDA_ARCH__)
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::uint32_t row = warp / warps_across * warp_rows + lane / 4;
    const std::uint32_t column = warp % warps_across * warp_columns + lane % 4 * 2;
#pragma unroll
    for (std::uint32_t m = 0; m < rows_down; ++m)
#pragma unroll
      for (std::uint32_t n = 0; n < columns_across; ++n)
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) take(row + m * 16 + i / 2 * 8, column + n * 8 + i % 2, sums_[m][n][i]);
#else
    for (std::uint32_t i = 0; i < side * side; ++i) take(i / side, i % side, sums_[i]);
#endif
  }

 private:
#if defined(__CUDA_ARCH__)
  static constexpr std::uint32_t warps_across = 4, warp_columns = side / warps_across;
  static constexpr std::uint32_t warp_rows = side / (threads / 32 / warps_across);
  static constexpr std::uint32_t rows_down = warp_rows / 16, columns_across = warp_columns / 8;

  static __device__ void load(std::uint32_t (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from)))
                 : "memory");
  }
  static __device__ void multiply(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  float sums_[rows_down][columns_across][4] = {};
#else
  template <int Parts>
  static float whole(const char* slices, std::uint32_t row, std::uint32_t k) {
    float sum = 0;
    for (int p = Parts; p-- > 0;) {
      bfloat16 part;
      std::memcpy(&part, slices + p * slice_bytes + place_in_slice(row, k / 8) + k % 8 * sizeof part, sizeof part);
      sum += value_of(part);
    }
    return sum;
  }

  float* sums_;
#endif
};

}  // namespace gpufs::tile

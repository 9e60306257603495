// The product of two tiles (product.cuh) on the CPU device, whose block is one thread. It first
// adds up a number's parts, which gives the number, and multiplies in float32.
#pragma once

#include "tile/numbers.cuh"
#include "tile/slice.cuh"

namespace gpufs::tile {

class cpu_product {
 public:
  static constexpr bool is_inlined = true;
  GPUFS_HD explicit cpu_product(char* memory) : sums_(reinterpret_cast<float*>(memory)) {
    for (std::uint32_t i = 0; i < side * side; ++i) sums_[i] = 0;
  }

  template <int Parts>
  GPUFS_HD void start(const char* a, const char* b) {
    static thread_local float right[depth][side];
    for (std::uint32_t n = 0; n < side; ++n)
      for (std::uint32_t k = 0; k < depth; ++k) right[k][n] = whole<Parts>(b, n, k);
    for (std::uint32_t m = 0; m < side; ++m) {
      // Sums of one slice. Adding each product to the long sum would round it more.
      float sums[side] = {};
      for (std::uint32_t k = 0; k < depth; ++k) {
        const float left = whole<Parts>(a, m, k);
        for (std::uint32_t n = 0; n < side; ++n) sums[n] += left * right[k][n];
      }
      for (std::uint32_t n = 0; n < side; ++n) sums_[m * side + n] += sums[n];
    }
  }
  GPUFS_HD void finish() {}
  GPUFS_HD void clear() {}
  GPUFS_HD void add(const cpu_product&) {}
  GPUFS_HD static void stored() {}

  template <class Take>
  GPUFS_HD void each(const Take& take) const {
    for (std::uint32_t i = 0; i < side * side; ++i) take(i / side, i % side, sums_[i]);
  }

 private:
  template <int Parts>
  GPUFS_HD static float whole(const char* slices, std::uint32_t row, std::uint32_t k) {
    float sum = 0;
    for (int p = Parts; p-- > 0;) {
      bfloat16 part;
      std::memcpy(&part,
                  slices + p * slice_bytes + place_in_slice(row, k / 8) + k % 8 * sizeof part,
                  sizeof part);
      sum += value_of(part);
    }
    return sum;
  }

  float* sums_;
};

}  // namespace gpufs::tile

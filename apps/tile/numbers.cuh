// Numbers as they lie in files, and as matrix units take them.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs {

struct bfloat16 {
  std::uint16_t bits;
};

template <class To, class From>
GPUFS_HD To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "all of them");
  To to{};
  std::memcpy(&to, &from, sizeof to);
  return to;
}
GPUFS_HD inline std::uint32_t bits_of(float x) { return same_bits<std::uint32_t>(x); }
GPUFS_HD inline float float_of(std::uint32_t bits) { return same_bits<float>(bits); }
GPUFS_HD inline std::uint64_t bits_of(double x) { return same_bits<std::uint64_t>(x); }
GPUFS_HD inline double double_of(std::uint64_t bits) { return same_bits<double>(bits); }

GPUFS_HD inline float value_of(float x) { return x; }
GPUFS_HD inline float value_of(bfloat16 x) { return float_of(std::uint32_t{x.bits} << 16); }

// Rounds to nearest, to even; what is not finite stays what it is, and what is too large becomes infinite.
GPUFS_HD inline bfloat16 rounded(float x) {
#if defined(__CUDA_ARCH__)
  bfloat16 nearest{};
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(nearest.bits) : "f"(x));
  return nearest;
#else
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

GPUFS_HD inline bool is_finite(float x) { return (bits_of(x) & 0x7f80'0000) != 0x7f80'0000; }

// A float32 as a sum of bfloat16 numbers: one is the nearest; three are all of it, but for what is smaller than the least of them.
template <int Parts>
GPUFS_HD void split(float x, bfloat16 (&parts)[Parts]) {
  parts[0] = rounded(x);
  if constexpr (Parts > 1) {
    // The largest ones would be rounded to infinity; cut off, they are not.
    if (!is_finite(value_of(parts[0]))) parts[0] = {static_cast<std::uint16_t>(bits_of(x) >> 16)};
    GPUFS_UNROLL
    for (int i = 1; i < Parts; ++i) {
      x = is_finite(x) ? x - value_of(parts[i - 1]) : 0;
      parts[i] = rounded(x);
    }
  }
}
template <int Parts>
GPUFS_HD void split(bfloat16 x, bfloat16 (&parts)[Parts]) {
  static_assert(Parts == 1, "it is one already");
  parts[0] = x;
}

// Some numbers in a row: of each part the bits, two numbers to a word.
template <int Parts, class T, std::size_t N>
GPUFS_HD void split_all(const T (&numbers)[N], std::uint32_t (&words)[Parts][N / 2]) {
  GPUFS_UNROLL
  for (std::size_t k = 0; k < N; k += 2) {
    bfloat16 low[Parts], high[Parts];
    split<Parts>(numbers[k], low);
    split<Parts>(numbers[k + 1], high);
    GPUFS_UNROLL
    for (int p = 0; p < Parts; ++p) words[p][k / 2] = std::uint32_t{high[p].bits} << 16 | low[p].bits;
  }
}

}  // namespace gpufs

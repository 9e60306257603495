// Numbers as files have them, and as matrix units take them.
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

// Rounds to nearest, ties to even. Infinities and NaN stay; numbers that are too large become
// infinite.
GPUFS_HD inline bfloat16 rounded(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

GPUFS_HD inline bool is_finite(float x) { return (bits_of(x) & 0x7f80'0000) != 0x7f80'0000; }

// Returns two numbers as bfloat16 in one word, each rounded as above. With `Bounded`, numbers that
// are too large become the largest finite number instead.
template <bool Bounded>
GPUFS_HD std::uint32_t two_rounded(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t both;
  if constexpr (Bounded)
    asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  const auto bits = [](float x) {
    const std::uint32_t nearest = rounded(x).bits;
    return Bounded && (nearest & 0x7fff) == 0x7f80 ? nearest - 1 : nearest;
  };
  return bits(high) << 16 | bits(low);
#endif
}

// Splits some numbers of a row into parts. words[p] has part p of all numbers, two numbers a word.
// The sum of a float32's parts is the number: one part is its nearest bfloat16; three parts are
// exact, except for what is smaller than the least part. If a number is not finite, neither is the
// sum.
template <int Parts, std::size_t N>
GPUFS_HD void split_all(const float (&numbers)[N], std::uint32_t (&words)[Parts][N / 2]) {
  GPUFS_UNROLL
  for (std::size_t k = 0; k < N; k += 2) {
    float low = numbers[k], high = numbers[k + 1];
    GPUFS_UNROLL
    for (int p = 0; p + 1 < Parts; ++p) {
      // Bounded: the largest numbers would be rounded to infinity, and their remainder would be
      // useless.
      const std::uint32_t both = words[p][k / 2] = two_rounded<true>(low, high);
      low -= float_of(both << 16), high -= float_of(both & 0xffff'0000);
    }
    words[Parts - 1][k / 2] = two_rounded<false>(low, high);
  }
}
template <int Parts, std::size_t N>
GPUFS_HD void split_all(const bfloat16 (&numbers)[N], std::uint32_t (&words)[Parts][N / 2]) {
  static_assert(Parts == 1, "it is one already");
  GPUFS_UNROLL
  for (std::size_t k = 0; k < N; k += 2)
    words[0][k / 2] = std::uint32_t{numbers[k + 1].bits} << 16 | numbers[k].bits;
}

}  // namespace gpufs

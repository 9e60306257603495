// Text as 8-byte words, to process eight bytes at a time. Little-endian, like GPUs and their hosts:
// byte i of a word is bits 8i to 8i+7.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs {

// Eight copies of a byte.
GPUFS_HD constexpr std::uint64_t eightfold(std::uint8_t byte) {
  return byte * 0x0101'0101'0101'0101ull;
}

GPUFS_HD constexpr bool has_zero_byte(std::uint64_t word) {
  return ((word - eightfold(1)) & ~word & eightfold(0x80)) != 0;
}

// Sets bit 7 of each byte that is zero, and no other bit.
GPUFS_HD constexpr std::uint64_t zero_bytes(std::uint64_t word) {
  // No carry leaves its byte. Otherwise a zero byte could make the next byte look like zero.
  return ~(((word & eightfold(0x7f)) + eightfold(0x7f)) | word | eightfold(0x7f));
}

// The index of the lowest or highest bit that is set. `bits` must not be 0.
GPUFS_HD inline std::uint32_t lowest_bit(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1;
#else
  return static_cast<std::uint32_t>(__builtin_ctz(bits));
#endif
}
GPUFS_HD inline std::uint32_t lowest_bit(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__ffsll(static_cast<long long>(bits))) - 1;
#else
  return static_cast<std::uint32_t>(__builtin_ctzll(bits));
#endif
}
GPUFS_HD inline std::uint32_t highest_bit(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return 63 - static_cast<std::uint32_t>(__clzll(static_cast<long long>(bits)));
#else
  return 63 - static_cast<std::uint32_t>(__builtin_clzll(bits));
#endif
}

}  // namespace gpufs

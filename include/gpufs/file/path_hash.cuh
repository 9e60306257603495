// A keyed 128-bit hash of paths: SipHash-2-4 with 128 bits of output (Aumasson, Bernstein 2012).
// Each mount draws a random key. Two paths with the same hash cannot be constructed without the
// key. Two of 65,536 open paths have the same hash by chance with a probability below 1e-29. So
// records need not store the path, and comparing hashes is exact enough.
#pragma once

#include "gpufs/base/platform.cuh"
#include "gpufs/cache/slot_state.cuh"

namespace gpufs {

class path_hasher {
 public:
  GPUFS_HD path_hasher(std::uint64_t k0, std::uint64_t k1)
      : v0_(0x736f6d6570736575ull ^ k0), v1_(0x646f72616e646f6dull ^ k1 ^ 0xee),
        v2_(0x6c7967656e657261ull ^ k0), v3_(0x7465646279746573ull ^ k1) {}

  GPUFS_HD slot_key operator()(const char* bytes, std::uint32_t length) {
    for (std::uint32_t at = 0; at + 8 <= length; at += 8) absorb(word(bytes + at, 8));
    absorb(word(bytes + length / 8 * 8, length % 8) | (std::uint64_t{length} << 56));
    v2_ ^= 0xee;
    for (int i = 0; i < 4; ++i) round();
    const std::uint64_t first = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    for (int i = 0; i < 4; ++i) round();
    return {first, v0_ ^ v1_ ^ v2_ ^ v3_};
  }

 private:
  GPUFS_HD static std::uint64_t word(const char* bytes, std::uint32_t n) {
    std::uint64_t w = 0;
    for (std::uint32_t i = 0; i < n; ++i)
      w |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return w;
  }
  GPUFS_HD static std::uint64_t rotate(std::uint64_t x, int b) {
    return (x << b) | (x >> (64 - b));
  }
  GPUFS_HD void absorb(std::uint64_t m) {
    v3_ ^= m;
    round();
    round();
    v0_ ^= m;
  }
  GPUFS_HD void round() {
    v0_ += v1_;
    v1_ = rotate(v1_, 13) ^ v0_;
    v0_ = rotate(v0_, 32);
    v2_ += v3_;
    v3_ = rotate(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = rotate(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = rotate(v1_, 17) ^ v2_;
    v2_ = rotate(v2_, 32);
  }
  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace gpufs

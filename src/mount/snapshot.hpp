// Copies of parts of an arena, which kernels may be changing meanwhile: each word is one that was
// there.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.hpp"
#include "gpufs/cache/arena.cuh"

namespace gpufs {

// `count` objects from `offset` of the arena on. Throws gpufs::error when the device fails.
template <class T>
std::vector<T> snapshot(device& gpu, const mount_ref& fs, std::uint64_t offset, std::size_t count) {
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0, "copied in whole words");
  std::vector<T> copy(count);
  gpu.snapshot(reinterpret_cast<std::uint64_t*>(copy.data()), fs.at<std::uint64_t>(offset),
               count * sizeof(T) / sizeof(std::uint64_t));
  return copy;
}

}  // namespace gpufs

// Copies of parts of an arena while kernels may be changing it. Each word copied is a value that
// the word had.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.hpp"
#include "gpufs/cache/arena.cuh"

namespace gpufs {

// Copies `count` objects from `offset` in the arena on. Throws gpufs::error if the device fails.
template <class T>
std::vector<T> snapshot(device& gpu, const mount_ref& fs, std::uint64_t offset, std::size_t count) {
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0, "copied in whole words");
  std::vector<T> copy(count);
  gpu.snapshot(reinterpret_cast<std::uint64_t*>(copy.data()), fs.at<std::uint64_t>(offset),
               count * sizeof(T) / sizeof(std::uint64_t));
  return copy;
}

}  // namespace gpufs

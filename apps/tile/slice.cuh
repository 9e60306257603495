// Slices of tiles, as matrix units take them.
#pragma once

#include <cstdint>

#include "gpufs/base/group.cuh"

namespace gpufs::tile {

inline constexpr std::uint32_t side = 128;     // rows of a tile
inline constexpr std::uint32_t depth = 32;     // of their numbers that are multiplied at a time
inline constexpr std::uint32_t threads = 256;  // of a block; the CPU device's is one
inline constexpr std::uint32_t threads_of_block = platform::is_gpu ? threads : 1;
inline constexpr std::uint32_t row_bytes = depth * 2;  // of bfloat16 numbers
inline constexpr std::uint32_t slice_bytes = side * row_bytes;
// Of the sums of a tile with another, which are in registers where there is a matrix unit.
inline constexpr std::size_t cpu_memory_bytes = sizeof(float) * side * side;
// Where wgmma reads slices: addresses have the bits that place_in_slice() looks at.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr std::size_t slice_alignment = 8 * row_bytes;
#else
inline constexpr std::size_t slice_alignment = sizeof(vector16);
#endif

// Where eight numbers of a row lie in a slice. In each two rows the quarters have another order: so
// eight rows' quarters, which a matrix unit loads together, lie in different banks of shared
// memory. (The 64-byte swizzle of wgmma's shared memory layouts.)
GPUFS_HD constexpr std::uint32_t place_in_slice(std::uint32_t row, std::uint32_t eight) {
  return row * row_bytes + ((eight ^ (row >> 1 & 3)) * 16);
}

// A block's scratch memory as a `Memory`, which begins with slices, aligned as they need: by how it
// is declared, as some GPUs have no room for more. For a kernel that uses scratch memory in no
// other way.
template <class Memory>
GPUFS_HD Memory& slice_memory() {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(slice_alignment) char gpufs_slice_memory[];
  return *reinterpret_cast<Memory*>(gpufs_slice_memory);
#else
  return *reinterpret_cast<Memory*>(block_group::scratch());
#endif
}

}  // namespace gpufs::tile

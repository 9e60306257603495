// Slices of tiles, in the layout that matrix units take.
#pragma once

#include <cstdint>

#include "gpufs/base/group.cuh"

namespace gpufs::tile {

inline constexpr std::uint32_t side = 128;  // rows of a tile
inline constexpr std::uint32_t depth = 32;  // numbers of each row that are multiplied at a time
// in a block on a GPU; the CPU device's block has one
inline constexpr std::uint32_t threads = 256;
inline constexpr std::uint32_t threads_of_block = platform::is_gpu ? threads : 1;
inline constexpr std::uint32_t row_bytes = depth * 2;  // of bfloat16 numbers
inline constexpr std::uint32_t slice_bytes = side * row_bytes;
// Memory for the sums of two tiles. With matrix units the sums are in registers.
inline constexpr std::size_t cpu_memory_bytes = sizeof(float) * side * side;
// For wgmma: addresses must have the bits that place_in_slice() uses.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr std::size_t slice_alignment = 8 * row_bytes;
#else
inline constexpr std::size_t slice_alignment = sizeof(vector16);
#endif

// Returns where eight numbers of a row lie in a slice. Every two rows have another order of their
// quarters, so the quarters of eight rows, which a matrix unit loads together, lie in different
// banks of shared memory. (This is the 64-byte swizzle of wgmma's shared memory layouts.)
GPUFS_HD constexpr std::uint32_t place_in_slice(std::uint32_t row, std::uint32_t eight) {
  return row * row_bytes + ((eight ^ (row >> 1 & 3)) * 16);
}

// Returns a block's scratch memory as a `Memory`. It begins with slices, and its declaration aligns
// them, because some GPUs have no room for padding. Only for kernels that use scratch memory in no
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

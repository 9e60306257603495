// Slices of tiles, as matrix units take them.
#pragma once

#include <cstdint>

#include "gpufs/base/group.cuh"

namespace gpufs::tile {

inline constexpr std::uint32_t side = 128;     // rows of a tile
inline constexpr std::uint32_t depth = 32;     // of their numbers that are multiplied at a time
inline constexpr std::uint32_t threads = 256;  // of a block; the twin's is one
inline constexpr std::uint32_t threads_of_block = platform::is_gpu ? threads : 1;
inline constexpr std::uint32_t row_bytes = depth * 2;  // of bfloat16 numbers
inline constexpr std::uint32_t slice_bytes = side * row_bytes;
// Of the scratch memory of a slice: so that addresses have the bits that place_in_slice() looks at.
inline constexpr std::size_t slice_alignment = 8 * row_bytes;

// Where eight numbers of a row lie in a slice. In each two rows the quarters have another order: so eight rows' quarters, which a matrix
// unit loads together, lie in different banks of shared memory. (The 64-byte swizzle of wgmma's shared memory layouts.)
GPUFS_HD constexpr std::uint32_t place_in_slice(std::uint32_t row, std::uint32_t eight) {
  return row * row_bytes + ((eight ^ (row >> 1 & 3)) * 16);
}

// A block's scratch memory as a `Memory`, which has slices: aligned as they need. Of scratch memory it takes slice_memory_bytes.
template <class Memory>
inline constexpr std::size_t slice_memory_bytes = sizeof(Memory) + slice_alignment - sizeof(vector16);
template <class Memory>
GPUFS_HD Memory& slice_memory() {
  static_assert(alignof(Memory) == slice_alignment, "with slices");
  char* const scratch = block_group::scratch();
#if defined(__CUDA_ARCH__)
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(scratch));
#else
  const auto at = reinterpret_cast<std::uintptr_t>(scratch);
#endif
  return *reinterpret_cast<Memory*>(scratch + (-at & (slice_alignment - 1)));
}

}  // namespace gpufs::tile

// The product of two tiles of bfloat16 numbers by the matrix units of a GPU: side x side sums, one
// for each pair of a row of one tile and a row of the other. Each thread of a block has some of the
// sums. A block multiplies slice by slice: `depth` numbers of each of the `side` rows. The
// instructions depend on the GPU; the classes have the same members:
//
// (memory)             Constructor: the sums are zero. Only the CPU device needs memory:
//                      cpu_memory_bytes in the block's scratch memory.
// start<Parts>(a, b)   Adds the product of two slices, each in `Parts` consecutive parts. Omits
//                      products of parts that are too small for float32. Collective of the block
//                      whose scratch memory has the slices.
// finish()             Waits for start(). Needed before the sums are read, and before a barrier
//                      after which the slices are overwritten.
// clear(), add(part)   Set the sums to zero; add another object's sums. On the CPU device these
//                      calls do nothing, and a copy shares the sums of its original: there each
//                      slice's sums are rounded when they are added.
// stored()             Called by each thread that stored into slices, before the barrier after
//                      which they are multiplied.
// each(take)           Calls `take(row of a, row of b, sum)` for the thread's sums.
// is_inlined           Whether a function that loops over start() and finish() must be inlined.
//                      mma: no, so that the sums are in registers of that function; the caller's
//                      variables live across calls, so they would be in memory at each use.
//                      wgmma: yes, because in a called function the compiler makes each instruction
//                      wait for the previous one.
#pragma once

#if !defined(__CUDA_ARCH__)
#include "tile/product_cpu.cuh"
#define GPUFS_TILE_INLINE
#else
#include <type_traits>

#include "tile/product_mma.cuh"
#include "tile/product_wgmma.cuh"
#define GPUFS_TILE_INLINE __forceinline__
#endif

namespace gpufs::tile {

// For numbers of `Parts` parts. With one part, loading takes longer than multiplying with any
// instruction, and a loop that is not inlined is shorter.
#if !defined(__CUDA_ARCH__)
template <int>
using product = cpu_product;
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int Parts>
using product = std::conditional_t<Parts == 1, mma_product, wgmma_product>;
#else
template <int>
using product = mma_product;
#endif

}  // namespace gpufs::tile

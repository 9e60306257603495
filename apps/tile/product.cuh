// The product of two tiles of bfloat16 numbers, by the matrix units of a GPU: the sums of the
// products of each row of one with each of the other, side x side, each thread of a block some of
// them. A block multiplies slice by slice: `depth` numbers of each of the `side` rows. Which
// instructions there are depends on the GPU; the classes have the same members:
//
//   (memory)                zeros. Memory only the CPU device needs, cpu_memory_bytes in the block's
//                           scratch memory.
//   start<Parts>(a, b)      adds the product of two slices, each in `Parts` parts that lie behind
//                           one another. Of parts the products are left out that float32 does not
//                           see. By all threads of a block, whose scratch memory the slices are in.
//   finish()                waits for that: before the sums are looked at, and before a barrier
//                           behind which the slices are overwritten.
//   clear(), add(part)      zeros again; adds another's sums. On the CPU device a copy has the same sums
//                           as what it was copied from, and these calls do nothing: there each
//                           slice's sums are rounded as they are added.
//   stored()                by each thread that stored into slices, before the barrier behind which
//                           they are multiplied.
//   each(take)              calls `take(row of a, row of b, sum)` for the thread's sums.
//
//   is_inlined              whether a function that calls start() and finish() in a loop is to be
//                           inlined. With mma it is not, so that the sums are in registers of its
//                           own: the caller's live across calls, and would be in memory at each
//                           use. With wgmma it must be: in a function that is called the compiler
//                           has instructions wait for each other one by one.
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

// For numbers of so many parts. Of one part loading takes longer than multiplying, however that is
// done, and a loop that is not inlined is shorter.
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

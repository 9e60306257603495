// The product of two tiles of bfloat16 numbers, by the matrix units of a GPU: the sums of the products of each row of one with each of
// the other, side x side, each thread of a block some of them. A block multiplies slice by slice: `depth` numbers of each of the `side`
// rows. Which instructions there are depends on the GPU; the class `product` has the same members everywhere:
//
//   product(memory)         zeros. Memory only the twin needs, twin_memory_bytes in the block's scratch memory.
//   start<Parts>(a, b)      adds the product of two slices, each in `Parts` parts that lie behind one another. Of parts the products
//                           are left out that float32 does not see. By all threads of a block, whose scratch memory the slices are in.
//   finish()                waits for that: before the sums are looked at, and before a barrier behind which the slices are overwritten.
//   clear(), add(part)      zeros again; adds another's sums. On the twin a copy has the same sums as what it was copied from, and these
//                           calls do nothing: there each slice's sums are rounded as they are added.
//   stored()                by each thread that stored into slices, before the barrier behind which they are multiplied.
//   each(take)              calls `take(row of a, row of b, sum)` for the thread's sums.
//
// GPUFS_TILE_LOOP: how a function is compiled that calls start() and finish() in a loop.
#pragma once

#if !defined(__CUDA_ARCH__)
#include "tile/product_twin.cuh"
#define GPUFS_TILE_LOOP
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "tile/product_wgmma.cuh"
// The compiler has the units wait for each other, instruction by instruction, in a function that is called.
#define GPUFS_TILE_LOOP __forceinline__
#else
#include "tile/product_mma.cuh"
// With the sums in registers of its own: the caller's live across calls, and would be in memory at each use.
#define GPUFS_TILE_LOOP __noinline__
#endif

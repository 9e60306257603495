// A group is the threads that make one collective call. All members pass the same arguments and get
// the same result. The leader (rank 0) does the single-threaded part. On the CPU device every group
// has one member.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs {

// Where the calling thread is: in its block, and its block in the launch. A block of the CPU device
// has one thread.
namespace detail {

GPUFS_HD inline std::uint32_t thread_of_block() {
#if defined(__CUDA_ARCH__)
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
#else
  return 0;
#endif
}
GPUFS_HD inline std::uint32_t threads_of_block() {
#if defined(__CUDA_ARCH__)
  return blockDim.x * blockDim.y * blockDim.z;
#else
  return 1;
#endif
}
GPUFS_HD inline std::uint32_t warps_of_block() { return (threads_of_block() + 31) / 32; }
GPUFS_HD inline std::uint64_t block_of_grid() {
#if defined(__CUDA_ARCH__)
  return blockIdx.x + gridDim.x * (blockIdx.y + std::uint64_t{gridDim.y} * blockIdx.z);
#else
  return platform::position_on_cpu().block;
#endif
}
GPUFS_HD inline std::uint64_t blocks_of_grid() {
#if defined(__CUDA_ARCH__)
  return std::uint64_t{gridDim.x} * gridDim.y * gridDim.z;
#else
  return platform::position_on_cpu().block_count;
#endif
}

}  // namespace detail

// A single thread. The other threads of its warp may be anywhere in their code.
class thread_group {
 public:
  static constexpr bool has_warps = false;  // whether it consists of warps that can act separately
  static constexpr bool is_one_thread = true;
  GPUFS_HD static constexpr std::uint32_t rank() { return 0; }
  GPUFS_HD static constexpr std::uint32_t size() { return 1; }
  GPUFS_HD static constexpr bool is_leader() { return true; }
  GPUFS_HD thread_group apart() const { return {}; }
  GPUFS_HD void sync() const {}
  // True if `value` is true for all members.
  GPUFS_HD bool all(bool value) const { return value; }
  // The minimum, and the sum, of the members' values.
  GPUFS_HD std::uint64_t least(std::uint64_t value) const { return value; }
  GPUFS_HD std::uint64_t sum(std::uint64_t value) const { return value; }
  // count(): the number of members whose value is true. leading(): the number of members before the
  // first member whose value is false.
  GPUFS_HD std::uint32_t count(bool value) const { return value ? 1 : 0; }
  GPUFS_HD std::uint32_t leading(bool value) const { return value ? 1 : 0; }
  template <class T>
  GPUFS_HD T broadcast(T value) const {
    return value;
  }
  // The value of the member with this rank.
  template <class T>
  GPUFS_HD T from(T value, std::uint32_t) const {
    return value;
  }

  // grid_rank(): the number of this group among the groups of its kind in the launch. grid_size():
  // how many there are. Kernels divide work by these two.
  GPUFS_HD static std::uint64_t grid_rank() {
    return detail::block_of_grid() * detail::threads_of_block() + detail::thread_of_block();
  }
  GPUFS_HD static std::uint64_t grid_size() {
    return detail::blocks_of_grid() * detail::threads_of_block();
  }
};

namespace detail {

// Common part of the groups within a warp. `whole`: all lanes of the warp are members. The mask is
// then a constant, even in a block's last warp with fewer than 32 lanes: lanes that do not exist or
// have exited take no part in shuffles and votes. A constant mask needs no register, and no
// instruction that converges the lanes of equal mask.
template <bool whole>
class lanes_of_warp {
 public:
  static constexpr bool has_warps = false;
  static constexpr bool is_one_thread = false;
  // The group of the lanes whose bits are set. Device code only.
  GPUFS_HD explicit lanes_of_warp([[maybe_unused]] std::uint32_t lanes)
    requires(!whole)
  {
#if defined(__CUDA_ARCH__)
    std::uint32_t below;
    // Volatile: the compiler reads the register once, and not again at each use.
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    mask_ = lanes;
    rank_ = __popc(lanes & below);
    size_ = __popc(lanes);
#endif
  }
  GPUFS_HD lanes_of_warp()
    requires whole
  {
#if defined(__CUDA_ARCH__)
    // Volatile: as above.
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(rank_));
    size_ = lanes_that_exist();
#endif
  }

  GPUFS_HD std::uint32_t rank() const { return rank_; }
  GPUFS_HD std::uint32_t size() const { return size_; }
  GPUFS_HD bool is_leader() const { return rank_ == 0; }
  // The same group, as a value that the compiler cannot trace back to this one. A function that
  // calls out of line only on a miss uses it on its hit path: a value that lives across a call lies
  // in local memory, where each use is a load.
  GPUFS_HD lanes_of_warp apart() const {
#if defined(__CUDA_ARCH__)
    if constexpr (whole) return {};
    else return lanes_of_warp(__ballot_sync(mask(), 1));
#else
    return *this;
#endif
  }
  // The members whose values `a` and `b` equal the caller's: a smaller group, for the calls that
  // follow.
  GPUFS_HD lanes_of_warp<false> matching([[maybe_unused]] std::uint64_t a,
                                         [[maybe_unused]] std::uint64_t b) const {
#if defined(__CUDA_ARCH__)
    return lanes_of_warp<false>(__match_any_sync(mask(), a) & __match_any_sync(mask(), b));
#else
    return lanes_of_warp<false>(1);
#endif
  }
  GPUFS_HD void sync() const {
#if defined(__CUDA_ARCH__)
    __syncwarp(mask());
#endif
  }
  GPUFS_HD bool all(bool value) const {
#if defined(__CUDA_ARCH__)
    return __all_sync(mask(), value);
#else
    return value;
#endif
  }
  GPUFS_HD std::uint64_t least(std::uint64_t value) const {
    return reduce(value, [](std::uint64_t a, std::uint64_t b) { return b < a ? b : a; });
  }
  GPUFS_HD std::uint64_t sum(std::uint64_t value) const {
    return reduce(value, [](std::uint64_t a, std::uint64_t b) { return a + b; });
  }
  template <class T>
  GPUFS_HD T broadcast(T value) const {
#if defined(__CUDA_ARCH__)
    static_assert(sizeof(T) % 4 == 0, "broadcast in whole words");
    union {
      T whole_value;
      std::uint32_t words[sizeof(T) / 4];
    } u{value};
    const int leader = whole ? 0 : __ffs(static_cast<int>(mask())) - 1;
    // The barrier lets the members use what the leader acquired: it orders memory, a shuffle does
    // not.
    __syncwarp(mask());
    GPUFS_UNROLL
    for (unsigned i = 0; i < sizeof(T) / 4; ++i)
      u.words[i] = __shfl_sync(mask(), u.words[i], leader);
    return u.whole_value;
#else
    return value;
#endif
  }
  // The number of members whose value is true.
  GPUFS_HD std::uint32_t count(bool value) const {
#if defined(__CUDA_ARCH__)
    return __popc(__ballot_sync(mask(), value));
#else
    return value ? 1 : 0;
#endif
  }
  // The number of members before the first member whose value is false.
  GPUFS_HD std::uint32_t leading(bool value) const {
#if defined(__CUDA_ARCH__)
    const std::uint32_t others = __ballot_sync(mask(), !value);
    if (others == 0) return size_;
    return __popc(mask() & ((others & (0u - others)) - 1));
#else
    return value ? 1 : 0;
#endif
  }
  // The value of the member with this rank.
  template <class T>
  GPUFS_HD T from(T value, [[maybe_unused]] std::uint32_t rank) const {
#if defined(__CUDA_ARCH__)
    const std::uint32_t lane =
        whole || mask() == ~0u ? rank : __fns(mask(), 0, static_cast<int>(rank) + 1);
    return __shfl_sync(mask(), value, static_cast<int>(lane));
#else
    return value;
#endif
  }

 private:
  GPUFS_HD std::uint32_t mask() const { return whole ? ~0u : mask_; }
  // Lanes that exist, not lanes that are converged: otherwise both halves of a diverged warp would
  // be the warp with this grid_rank().
  GPUFS_HD static std::uint32_t lanes_that_exist() {
    const std::uint32_t threads = threads_of_block();
    if (threads % 32 == 0) return 32;
    const std::uint32_t left = threads - thread_of_block() / 32 * 32;
    return left >= 32 ? 32 : left;
  }
  template <class Operation>
  GPUFS_HD std::uint64_t reduce(std::uint64_t value,
                                [[maybe_unused]] const Operation& operation) const {
#if defined(__CUDA_ARCH__)
    // Each iteration combines values from twice the distance. At the end the leader has the result.
    for (std::uint32_t step = 1; step < size_; step *= 2) {
      const std::uint64_t other = from(value, rank_ + step < size_ ? rank_ + step : rank_);
      if (rank_ + step < size_) value = operation(value, other);
    }
    return broadcast(value);
#else
    return value;
#endif
  }
  std::uint32_t mask_ = 1;
  std::uint32_t rank_ = 0;
  std::uint32_t size_ = 1;
};

}  // namespace detail

// All lanes of one warp: 32, or fewer in the last warp of a block. `this_warp()` makes it.
// Collective: all lanes make every call. Diverged lanes wait for each other at the first call, as
// at __syncwarp(). It is an error if only some lanes make a call, or if some have exited; such
// lanes use lane_group.
class warp_group : public detail::lanes_of_warp<true> {
 public:
  warp_group() = default;
  GPUFS_HD explicit warp_group(const lanes_of_warp& lanes) : lanes_of_warp(lanes) {}
  GPUFS_HD warp_group apart() const { return warp_group(lanes_of_warp::apart()); }
  GPUFS_HD static std::uint64_t grid_rank() {
    return detail::block_of_grid() * detail::warps_of_block() + detail::thread_of_block() / 32;
  }
  GPUFS_HD static std::uint64_t grid_size() {
    return detail::blocks_of_grid() * detail::warps_of_block();
  }
};

// Some lanes of one warp that act as a group. `converged_lanes()` makes it, or `as_group()` from a
// tile. Collective: all its lanes make every call. It has no grid_rank(), because a warp may hold
// any number of such groups; so work cannot be divided by it.
using lane_group = detail::lanes_of_warp<false>;

// All threads of one block. `this_block()` makes it. Collective: all threads of the block make
// every call.
class block_group {
 public:
  static constexpr bool has_warps = true;
  static constexpr bool is_one_thread = false;
  GPUFS_HD static std::uint32_t rank() { return detail::thread_of_block(); }
  GPUFS_HD static std::uint32_t size() { return detail::threads_of_block(); }
  GPUFS_HD static bool is_leader() { return rank() == 0; }
  GPUFS_HD void sync() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  GPUFS_HD bool all(bool value) const {
#if defined(__CUDA_ARCH__)
    return __syncthreads_and(value);
#else
    return value;
#endif
  }
  template <class T>
  GPUFS_HD T broadcast(T value) const {
#if defined(__CUDA_ARCH__)
    __shared__ alignas(16) unsigned char cell[sizeof(T)];
    // The first barrier protects the cell while a slower thread still reads the last broadcast.
    __syncthreads();
    if (is_leader()) *reinterpret_cast<T*>(cell) = value;
    __syncthreads();
    return *reinterpret_cast<const T*>(cell);
#else
    return value;
#endif
  }
  GPUFS_HD static std::uint64_t grid_rank() { return detail::block_of_grid(); }
  GPUFS_HD static std::uint64_t grid_size() { return detail::blocks_of_grid(); }

  // The caller's warp, for parts of a call that each warp does by itself.
  GPUFS_HD static warp_group warp() { return {}; }
  GPUFS_HD static std::uint32_t warp_rank() { return rank() / 32; }
  GPUFS_HD static std::uint32_t warp_count() { return detail::warps_of_block(); }

  GPUFS_HD std::uint64_t least(std::uint64_t value) const {
    return reduce(warp().least(value),
                  [](std::uint64_t a, std::uint64_t b) { return b < a ? b : a; });
  }
  GPUFS_HD std::uint64_t sum(std::uint64_t value) const {
    return reduce(warp().sum(value), [](std::uint64_t a, std::uint64_t b) { return a + b; });
  }

  // The block's scratch memory: dynamic shared memory on a GPU, heap memory on the CPU device. Its
  // size is `launch_shape::scratch_bytes`.
  GPUFS_HD static char* scratch() {
#if defined(__CUDA_ARCH__)
    extern __shared__ vector16 gpufs_block_scratch[];
    return reinterpret_cast<char*>(gpufs_block_scratch);
#else
    return platform::position_on_cpu().scratch;
#endif
  }

 private:
  // `value`: the result of the member's warp.
  template <class Operation>
  GPUFS_HD static std::uint64_t reduce(std::uint64_t value,
                                       [[maybe_unused]] const Operation& operation) {
#if defined(__CUDA_ARCH__)
    __shared__ std::uint64_t of_warps[32];
    // The first barrier protects the cells while a slower thread still reads those of the last
    // call.
    __syncthreads();
    if (warp().is_leader()) of_warps[warp_rank()] = value;
    __syncthreads();
    value = of_warps[0];
    for (std::uint32_t i = 1; i < warp_count(); ++i) value = operation(value, of_warps[i]);
#endif
    return value;
  }
};

// Calls `f` with one warp and returns its result to all members. For a block, the first warp calls
// `f` while the other warps wait. Other groups call `f` themselves. A lambda must name its
// argument's type: run-time compilers take a lambda with `auto` for a host function.
template <class Group>
using one_warp_of = std::conditional_t<Group::has_warps, warp_group, Group>;
template <class Group, class F>
GPUFS_HD auto by_one_warp(const Group& g, const F& f) {
  if constexpr (Group::has_warps) {
    const one_warp_of<Group> warp = g.warp();
    decltype(f(warp)) result{};
    if (g.warp_rank() == 0) result = f(warp);
    return g.broadcast(result);
  } else {
    return f(g);
  }
}

GPUFS_HD inline thread_group this_thread() { return {}; }
GPUFS_HD inline warp_group this_warp() { return {}; }
GPUFS_HD inline block_group this_block() { return {}; }

// The lanes of the caller's warp that the hardware runs converged with the caller at this moment.
GPUFS_HD inline lane_group converged_lanes() {
#if defined(__CUDA_ARCH__)
  return lane_group(__activemask());
#else
  return lane_group(1);
#endif
}

namespace detail {

template <class G>
concept own_group = requires(const G& g) {
  G::has_warps;
  G::is_one_thread;
  g.rank();
  g.size();
  g.is_leader();
  g.sync();
};
// cooperative_groups::thread_block_tile<N>, N <= 32. Other groups do not know their size at compile
// time.
template <std::uint32_t threads>
  requires(threads <= 32)
struct lanes_of_tile {};
template <class G>
concept cooperative_tile = requires(const G& g) {
  g.meta_group_rank();
  typename lanes_of_tile<G::num_threads()>;
};
// cooperative_groups::thread_block
template <class G>
concept cooperative_block = requires(const G& g) {
  g.group_index();
  g.thread_index();
};

}  // namespace detail

// What a call takes as its group: the groups above, and of cooperative_groups the thread_block and
// its tiles of at most 32 threads.
template <class G>
concept group = detail::own_group<G> || detail::cooperative_tile<G> || detail::cooperative_block<G>;

// The same group as one of this file: a block_group for a thread_block; for a tile a warp_group (32
// threads), a lane_group (fewer) or a thread_group (1). Tiles exist in device code only.
template <detail::own_group G>
GPUFS_HD const G& as_group(const G& g) {
  return g;
}
template <detail::cooperative_block Block>
GPUFS_HD block_group as_group(const Block&) {
  return {};
}
template <detail::cooperative_tile Tile>
GPUFS_HD auto as_group(const Tile&) {
  constexpr std::uint32_t threads = Tile::num_threads();
  if constexpr (threads == 32) {
    return warp_group();
  } else if constexpr (threads == 1) {
    return thread_group();
  } else {
#if defined(__CUDA_ARCH__)
    std::uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane_group(((1u << threads) - 1) << (lane & ~(threads - 1)));
#else
    return lane_group(1);
#endif
  }
}

}  // namespace gpufs

// Copies that the members of a group make together.
#pragma once

#include "gpufs/base/group.cuh"

#if !defined(__CUDA_ARCH__)
#include <sys/uio.h>
#endif

namespace gpufs {

namespace detail {

// How a source is read. Frames: ordinary loads. Never the read-only path, because frames are
// reused. Host memory: volatile loads, so that no stale value from a cache of this GPU is returned.
struct frame_source {
  GPUFS_HD static vector16 load(const vector16* p) { return *p; }
  GPUFS_HD static unsigned char load(const unsigned char* p) { return *p; }
};
struct host_source {
  GPUFS_HD static vector16 load(const vector16* p) {
#if defined(__CUDA_ARCH__)
    vector16 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
#else
    return *p;
#endif
  }
  GPUFS_HD static unsigned char load(const unsigned char* p) {
#if defined(__CUDA_ARCH__)
    return *const_cast<const volatile unsigned char*>(p);
#else
    return *p;
#endif
  }
};

#if defined(__CUDA_ARCH__)
// A second-level cache policy: evict these bytes first. Otherwise the pages that stream through the
// cache would evict what every access needs: the index and the page headers.
GPUFS_HD inline std::uint64_t goes_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#endif

// How a target is written.
struct any_target {
  GPUFS_HD static void store(vector16* p, const vector16& v) { *p = v; }
};
struct page_target {
  GPUFS_HD static void store(vector16* p, const vector16& v) {
#if defined(__CUDA_ARCH__)
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(
                     __cvta_generic_to_global(p)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(goes_first())
                 : "memory");
#else
    *p = v;
#endif
  }
};

// Copies one member's vectors, which are `step` apart. Returns the index of the first vector not
// copied. Each member has eight loads in flight before the first store, because the latency of the
// bus is a microsecond. If the step is a compile-time constant, address offsets are part of the
// instructions and need no registers.
template <class Source, class Target, class Step>
GPUFS_HD std::uint64_t copy_eights(vector16* to, const vector16* from, std::uint64_t i,
                                   std::uint64_t count, Step step) {
  GPUFS_NO_UNROLL
  for (; i + 7 * step < count; i += 8 * step) {
    vector16 v[8];
    GPUFS_UNROLL
    for (int k = 0; k < 8; ++k) v[k] = Source::load(from + i + step * k);
    GPUFS_UNROLL
    for (int k = 0; k < 8; ++k) Target::store(to + i + step * k, v[k]);
  }
  return i;
}
template <std::uint64_t n>
struct known {
  GPUFS_HD constexpr operator std::uint64_t() const { return n; }
};
template <class Source, class Target, class Group>
GPUFS_HD void copy_vectors(const Group& g, vector16* to, const vector16* from,
                           std::uint64_t count) {
  const std::uint64_t size = g.size();
  std::uint64_t i = g.rank();
  if constexpr (Group::is_one_thread)
    i = copy_eights<Source, Target>(to, from, i, count, known<1>());
  else if constexpr (Group::has_warps) i = copy_eights<Source, Target>(to, from, i, count, size);
  else if (size == 32) i = copy_eights<Source, Target>(to, from, i, count, known<32>());
  GPUFS_NO_UNROLL
  for (; i < count; i += size) Target::store(to + i, Source::load(from + i));
}

// Precondition: all members pass the same arguments. No barrier inside; the caller orders the copy.
template <class Source, class Target = any_target, class Group>
GPUFS_HD void copy(const Group& g, char* to, const char* from, std::uint64_t bytes) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t rank = g.rank(), size = g.size();
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  if (((address(to) ^ address(from)) & 15) == 0) {
    const std::uint64_t head = (16 - (address(to) & 15)) & 15;
    const std::uint64_t first = head < bytes ? head : bytes;
    for (std::uint64_t i = rank; i < first; i += size)
      to[i] = static_cast<char>(Source::load(reinterpret_cast<const unsigned char*>(from) + i));
    auto* d = reinterpret_cast<vector16*>(to + first);
    const auto* s = reinterpret_cast<const vector16*>(from + first);
    const std::uint64_t vectors = (bytes - first) / 16;
    copy_vectors<Source, Target>(g, d, s, vectors);
    for (std::uint64_t t = first + vectors * 16 + rank; t < bytes; t += size)
      to[t] = static_cast<char>(Source::load(reinterpret_cast<const unsigned char*>(from) + t));
  } else {
    for (std::uint64_t i = rank; i < bytes; i += size)
      to[i] = static_cast<char>(Source::load(reinterpret_cast<const unsigned char*>(from) + i));
  }
#else
  (void)g;
  std::memcpy(to, from, bytes);
#endif
}

// Starts a copy into shared memory that needs no registers (cp.async, sm_80), so that many bytes
// are in flight. Returns false, and copies nothing, where this is not possible.
template <class Group>
GPUFS_HD bool start_copy_to_shared([[maybe_unused]] const Group& g, [[maybe_unused]] char* to,
                                   [[maybe_unused]] const char* from,
                                   [[maybe_unused]] std::uint64_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !GPUFS_STRICT_MEMORY
  const std::uint64_t alignment =
      reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes;
  if ((alignment & 15) != 0 || !__isShared(to)) return false;
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const std::uint64_t global = __cvta_generic_to_global(from);
  const auto start = [=](std::uint64_t at) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared + static_cast<std::uint32_t>(at)),
        "l"(global + at)
        : "memory");
  };
  std::uint64_t at = std::uint64_t{g.rank()} * 16;
  if (g.size() == 32) {
    // Constant address offsets are part of the instructions.
    for (; at + 7 * 512 < bytes; at += 8 * 512) {
      GPUFS_UNROLL
      for (int k = 0; k < 8; ++k) start(at + 512 * k);
    }
  }
  GPUFS_NO_UNROLL
  for (; at < bytes; at += std::uint64_t{g.size()} * 16) start(at);
  return true;
#else
  return false;
#endif
}

}  // namespace detail

// Copies from a frame into the caller's memory. On return the caller's part may still be in flight,
// until the caller calls finish_copies().
template <class Group>
GPUFS_HD void start_copy_from_frame(const Group& g, char* to, const char* from,
                                    std::uint64_t bytes) {
  if (!detail::start_copy_to_shared(g, to, from, bytes))
    detail::copy<detail::frame_source>(g, to, from, bytes);
}
// Waits for the caller's parts of all asynchronous copies, including copies that user code started.
GPUFS_HD inline void finish_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
template <class Group>
GPUFS_HD void copy_from_frame(const Group& g, char* to, const char* from, std::uint64_t bytes) {
  start_copy_from_frame(g, to, from, bytes);
  finish_copies();
}

// Copies from pinned host memory (staging).
template <class Group>
GPUFS_HD void copy_from_host(const Group& g, char* to, const char* from, std::uint64_t bytes) {
  detail::copy<detail::host_source>(g, to, from, bytes);
}

// Copies from a mapped file (an extent). Returns the bytes copied. On a GPU these are all, because
// registration has pinned the pages. On the CPU device the mapping may end early, because the file
// was truncated. There the kernel makes the copy, so that this gives a short copy and not SIGBUS.
template <class Group>
GPUFS_HD std::uint64_t copy_from_extent(const Group& g, char* to, std::uint64_t from,
                                        std::uint64_t bytes) {
#if defined(__CUDA_ARCH__)
  copy_from_host(g, to, reinterpret_cast<const char*>(from), bytes);
  return bytes;
#else
  (void)g;
  iovec local{to, bytes};
  iovec remote{reinterpret_cast<void*>(from), bytes};
  const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  return n < 0 ? 0 : static_cast<std::uint64_t>(n);
#endif
}

namespace detail {

#if !defined(__CUDA_ARCH__)
// Copies between a page that other threads may read or write at the same time, and private memory.
// `to_shared`: the page is the target. Atomic accesses make each word known to ThreadSanitizer. The
// callers define what a race may yield (cache/dirty.cuh).
template <bool to_shared>
inline void copy_racing(char* to, const char* from, std::uint64_t bytes) {
  const auto* const shared = to_shared ? to : from;
  const auto move = [&](auto zero) {
    using word = decltype(zero);
    word w = zero;
    if constexpr (to_shared) {
      std::memcpy(&w, from, sizeof w);
      __atomic_store_n(reinterpret_cast<word*>(to), w, __ATOMIC_RELAXED);
    } else {
      w = __atomic_load_n(reinterpret_cast<const word*>(from), __ATOMIC_RELAXED);
      std::memcpy(to, &w, sizeof w);
    }
    to += sizeof w;
    from += sizeof w;
    bytes -= sizeof w;
  };
  const std::uint64_t odd = (8 - (reinterpret_cast<std::uintptr_t>(shared) & 7)) & 7;
  for (std::uint64_t head = odd < bytes ? odd : bytes; head != 0; --head) move(std::uint8_t{});
  while (bytes >= 8) move(std::uint64_t{});
  while (bytes != 0) move(std::uint8_t{});
}
#endif

}  // namespace detail

// copy_into_page(): into a page that other groups may be reading. copy_out_of_page(): from a page
// that other groups may be writing.
template <class Group>
GPUFS_HD void copy_into_page([[maybe_unused]] const Group& g, char* to, const char* from,
                             std::uint64_t bytes) {
#if defined(__CUDA_ARCH__)
  detail::copy<detail::frame_source, detail::page_target>(g, to, from, bytes);
#else
  detail::copy_racing<true>(to, from, bytes);
#endif
}
template <class Group>
GPUFS_HD void copy_out_of_page([[maybe_unused]] const Group& g, char* to, const char* from,
                               std::uint64_t bytes) {
#if defined(__CUDA_ARCH__)
  detail::copy<detail::host_source>(g, to, from, bytes);
#else
  detail::copy_racing<false>(to, from, bytes);
#endif
}

template <class Group>
GPUFS_HD void zero_in_page([[maybe_unused]] const Group& g, char* to, std::uint64_t bytes) {
#if defined(__CUDA_ARCH__)
  for (std::uint64_t i = g.rank(); i < bytes; i += g.size()) to[i] = 0;
#else
  for (std::uint64_t i = 0; i < bytes; ++i) __atomic_store_n(to + i, char{0}, __ATOMIC_RELAXED);
#endif
}
template <class Group>
GPUFS_HD void fill_zero(const Group& g, char* to, std::uint64_t bytes) {
  for (std::uint64_t i = g.rank(); i < bytes; i += g.size()) to[i] = 0;
}

// Copies to pinned host memory (paths, bytes for sinks).
template <class Group>
GPUFS_HD void copy_to_host(const Group& g, char* to, const char* from, std::uint64_t bytes) {
  detail::copy<detail::frame_source>(g, to, from, bytes);
}

}  // namespace gpufs

// Atomic words with the scope in the type. Thin on purpose: the compiler's own atomic operations on
// both sides (nvcc >= 12.8, g++), so that device code needs no library header, compiles in
// milliseconds under run-time compilers and is understood by ThreadSanitizer. Only the orders that
// the project uses exist.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs {

enum class scope {
  device,  // threads of one GPU (or of the CPU device): memory of the arena
  // one side GPU, the other side host: memory of the channel. No read-modify-write: PCIe has none.
  system
};

// One word that several threads read and write. Aggregate and trivially copyable: it lives in raw
// memory that is zeroed, never constructed. Not copied while others use it.
template <class T, scope S = scope::device>
struct atomic_word {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "GPUs have no narrower atomic words");
  T value;

  GPUFS_HD T load_relaxed() const {
#if defined(__CUDA_ARCH__)
    if constexpr (S == scope::device)
      return __nv_atomic_load_n(const_cast<T*>(&value), __NV_ATOMIC_RELAXED,
                                __NV_THREAD_SCOPE_DEVICE);
    else
      return __nv_atomic_load_n(const_cast<T*>(&value), __NV_ATOMIC_RELAXED,
                                __NV_THREAD_SCOPE_SYSTEM);
#else
    return __atomic_load_n(&value, __ATOMIC_RELAXED);
#endif
  }

  GPUFS_HD T load_acquire() const {
#if defined(__CUDA_ARCH__)
    if constexpr (S == scope::device)
      return __nv_atomic_load_n(const_cast<T*>(&value), __NV_ATOMIC_ACQUIRE,
                                __NV_THREAD_SCOPE_DEVICE);
    else
      return __nv_atomic_load_n(const_cast<T*>(&value), __NV_ATOMIC_ACQUIRE,
                                __NV_THREAD_SCOPE_SYSTEM);
#else
    return __atomic_load_n(&value, __ATOMIC_ACQUIRE);
#endif
  }

  // For waiting loops: load_for_wait() until the value is the one waited for, then end_wait();
  // together an acquire. On a GPU an acquire at each look would empty the multiprocessor's
  // first-level cache each time, and a fence in its place is worse: one of system scope waits for
  // the bus, and the fences of all warps wait for each other.
  GPUFS_HD T load_for_wait() const {
#if defined(__CUDA_ARCH__)
    return load_relaxed();
#else
    return load_acquire();
#endif
  }
  GPUFS_HD void end_wait() const {
#if defined(__CUDA_ARCH__)
    (void)load_acquire();
#endif
  }

  GPUFS_HD void store_relaxed(T v) {
#if defined(__CUDA_ARCH__)
    if constexpr (S == scope::device)
      __nv_atomic_store_n(&value, v, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    else __nv_atomic_store_n(&value, v, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
#else
    __atomic_store_n(&value, v, __ATOMIC_RELAXED);
#endif
  }

  GPUFS_HD void store_release(T v) {
#if defined(__CUDA_ARCH__)
    if constexpr (S == scope::device)
      __nv_atomic_store_n(&value, v, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
    else __nv_atomic_store_n(&value, v, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
#else
    __atomic_store_n(&value, v, __ATOMIC_RELEASE);
#endif
  }

  // A store that carries nothing but itself: what the caller's group read before has arrived, and
  // is in use, so that the other side may overwrite it. A GPU does not take loads back, so no fence
  // is needed there; on the CPU device it is a release, because ThreadSanitizer wants to hear of it.
  GPUFS_HD void store_after_reads(T v) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    store_relaxed(v);
#else
    store_release(v);
#endif
  }

  // A store that comes before the caller's next load_after_store(), of another word. Where two
  // sides each store to one word and then load the other's, at least one of them sees the other's
  // store.
  GPUFS_HD void store_before_load(T v) {
#if defined(__CUDA_ARCH__)
    store_relaxed(v);
    if constexpr (S == scope::device) asm volatile("fence.sc.gpu;" ::: "memory");
    else asm volatile("fence.sc.sys;" ::: "memory");
#else
    __atomic_store_n(&value, v, __ATOMIC_SEQ_CST);
#endif
  }
  GPUFS_HD T load_after_store() const {
#if defined(__CUDA_ARCH__)
    return load_relaxed();
#else
    return __atomic_load_n(&value, __ATOMIC_SEQ_CST);
#endif
  }

  GPUFS_HD T fetch_add_relaxed(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_fetch_add(&value, v, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_fetch_add(&value, v, __ATOMIC_RELAXED);
#endif
  }

  // Adds, and tells nothing. The word lies in global memory: said to the compiler by hand, because
  // of a pointer that might be into shared memory it makes a wide addition with two ways and a
  // loop.
  GPUFS_HD void add_relaxed(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    const std::uint64_t at = __cvta_generic_to_global(&value);
    if constexpr (sizeof(T) == 8)
      asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
    else asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
#else
    (void)fetch_add_relaxed(v);
#endif
  }

  GPUFS_HD T fetch_add_acquire(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_fetch_add(&value, v, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_fetch_add(&value, v, __ATOMIC_ACQUIRE);
#endif
  }

  // An acquire for who touches what it orders only in a branch that the result decides on: a GPU
  // waits for the result then (docs/memory_model.md, 3), and keeps its first-level cache.
  GPUFS_HD T fetch_add_before_branch(T v) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    return fetch_add_relaxed(v);
#else
    return fetch_add_acquire(v);
#endif
  }

  GPUFS_HD T fetch_add_release(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_fetch_add(&value, v, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_fetch_add(&value, v, __ATOMIC_RELEASE);
#endif
  }

  GPUFS_HD T fetch_add_acq_rel(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_fetch_add(&value, v, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_fetch_add(&value, v, __ATOMIC_ACQ_REL);
#endif
  }

  // As store_after_reads().
  GPUFS_HD T fetch_add_after_reads(T v) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    return fetch_add_relaxed(v);
#else
    return fetch_add_release(v);
#endif
  }
  GPUFS_HD void add_after_reads(T v) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    add_relaxed(v);
#else
    (void)fetch_add_release(v);
#endif
  }

  // Both orders: for words through which writers of a page and those who write it back pass its
  // bytes to each other (cache/dirty.cuh). Sets bits, and tells nothing. The word lies in global
  // memory, as for add_relaxed().
  GPUFS_HD void or_release(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    const std::uint64_t at = __cvta_generic_to_global(&value);
    if constexpr (sizeof(T) == 8)
      asm volatile("red.release.gpu.global.or.b64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
    else asm volatile("red.release.gpu.global.or.b32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
#else
    (void)__atomic_fetch_or(&value, v, __ATOMIC_RELEASE);
#endif
  }
  GPUFS_HD T fetch_or_acq_rel(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_fetch_or(&value, v, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_fetch_or(&value, v, __ATOMIC_ACQ_REL);
#endif
  }
  GPUFS_HD T fetch_and_acq_rel(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_fetch_and(&value, v, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_fetch_and(&value, v, __ATOMIC_ACQ_REL);
#endif
  }
  GPUFS_HD T exchange_acq_rel(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    T old;
    __nv_atomic_exchange(&value, &v, &old, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
    return old;
#else
    return __atomic_exchange_n(&value, v, __ATOMIC_ACQ_REL);
#endif
  }
  // Raises it to `v`, if it is less. Release: who sees the value sees what came before.
  GPUFS_HD void fetch_max_release(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    (void)__nv_atomic_fetch_max(&value, v, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
#else
    T seen = __atomic_load_n(&value, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(&value, &seen, v, false, __ATOMIC_RELEASE,
                                                    __ATOMIC_RELAXED)) {
    }
#endif
  }

  // The same with both orders: the caller reads what came before the store that it finds.
  GPUFS_HD void fetch_max_acq_rel(T v) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    (void)__nv_atomic_fetch_max(&value, v, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
#else
    T seen = __atomic_load_n(&value, __ATOMIC_ACQUIRE);
    while (seen < v && !__atomic_compare_exchange_n(&value, &seen, v, false, __ATOMIC_ACQ_REL,
                                                    __ATOMIC_ACQUIRE)) {
    }
#endif
  }

  // Success and failure leave the value that was seen in `expected`. The order named is that of
  // success; a failure is relaxed. On a GPU each release costs a fence and each acquire the
  // first-level cache, so callers ask for what they need.
  [[nodiscard]] GPUFS_HD bool compare_exchange_relaxed(T& expected, T desired) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_compare_exchange_n(&value, &expected, desired, false, __NV_ATOMIC_RELAXED,
                                          __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_compare_exchange_n(&value, &expected, desired, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
#endif
  }
  [[nodiscard]] GPUFS_HD bool compare_exchange_acquire(T& expected, T desired) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_compare_exchange_n(&value, &expected, desired, false, __NV_ATOMIC_ACQUIRE,
                                          __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_compare_exchange_n(&value, &expected, desired, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
#endif
  }
  [[nodiscard]] GPUFS_HD bool compare_exchange_acq_rel(T& expected, T desired) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_compare_exchange_n(&value, &expected, desired, false, __NV_ATOMIC_ACQ_REL,
                                          __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_compare_exchange_n(&value, &expected, desired, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
#endif
  }
  // For who reads nothing behind it of what others stored: on a GPU a release, which leaves the
  // first-level cache alone. (The CPU device's processors give both orders for the price of one.)
  [[nodiscard]] GPUFS_HD bool compare_exchange_in_order(T& expected, T desired) {
#if defined(__CUDA_ARCH__)
    return compare_exchange_release(expected, desired);
#else
    return compare_exchange_acq_rel(expected, desired);
#endif
  }
  [[nodiscard]] GPUFS_HD bool compare_exchange_release(T& expected, T desired) {
    static_assert(S == scope::device, "no read-modify-write across PCIe");
#if defined(__CUDA_ARCH__)
    return __nv_atomic_compare_exchange_n(&value, &expected, desired, false, __NV_ATOMIC_RELEASE,
                                          __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
#else
    return __atomic_compare_exchange_n(&value, &expected, desired, false, __ATOMIC_RELEASE,
                                       __ATOMIC_RELAXED);
#endif
  }
};

// Two neighbouring words, 16-byte aligned, in global memory.
struct word_pair {
  std::uint64_t first, second;
};

// Both by one instruction, each an access of its own: in no order.
GPUFS_HD inline word_pair load_both(const atomic_word<std::uint64_t>* words) {
#if defined(__CUDA_ARCH__)
  word_pair p;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];"
               : "=l"(p.first), "=l"(p.second)
               : "l"(__cvta_generic_to_global(words))
               : "memory");
  return p;
#else
  return {words[0].load_relaxed(), words[1].load_relaxed()};
#endif
}

#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
// 16 bytes as one access, also beside narrower ones (docs/memory_model.md, 1). As instructions they
// are those of two words.
GPUFS_HD inline word_pair load_16_relaxed(const void* at) {
  word_pair p;
  asm volatile("{\n .reg .b128 v;\n ld.relaxed.gpu.global.b128 v, [%2];\n mov.b128 {%0,%1}, v;\n}"
               : "=l"(p.first), "=l"(p.second)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return p;
}
GPUFS_HD inline word_pair load_16_acquire(const void* at) {
  word_pair p;
  asm volatile("{\n .reg .b128 v;\n ld.acquire.gpu.global.b128 v, [%2];\n mov.b128 {%0,%1}, v;\n}"
               : "=l"(p.first), "=l"(p.second)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return p;
}
GPUFS_HD inline void store_16_relaxed(void* at, const word_pair& p) {
  asm volatile(
      "{\n .reg .b128 v;\n mov.b128 v, {%1,%2};\n st.relaxed.gpu.global.b128 [%0], v;\n}" ::"l"(
          __cvta_generic_to_global(at)),
      "l"(p.first), "l"(p.second)
      : "memory");
}
#endif

// A word, and one beside it that says of when it is: the tag. Their writer changes the tag to one
// that nobody expects, then the word, then the tag to the new one; other stores of its own, with
// release and acquire, lie between the first two. Who finds the tag expected has the word that
// belongs to it. Where that takes several loads, the tag is 0, which is nobody's, if it changed
// meanwhile: a reader that stands still between its loads would else take a word for that of a
// later tag, which may look the same to one that compares a part of it.
GPUFS_HD inline word_pair load_tagged(const atomic_word<std::uint64_t>* words) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  return load_16_relaxed(words);
#else
  // Acquire: pairs with the tag's store. The word is at least as new as this tag.
  const std::uint64_t tag = words[1].load_acquire();
  GPUFS_SCHEDULE_POINT("tagged.load_word");
  // Acquire: pairs with the word's store. A tag that is read later than its word is at least as
  // new.
  const std::uint64_t word = words[0].load_acquire();
  GPUFS_SCHEDULE_POINT("tagged.load");
  return {word, words[1].load_relaxed() == tag ? tag : 0};
#endif
}
// Stores the word, or its tag.
GPUFS_HD inline void store_tagged(atomic_word<std::uint64_t>& word, std::uint64_t v) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  word.store_relaxed(v);
#else
  word.store_release(v);
#endif
}

template <class T>
using channel_word = atomic_word<T, scope::system>;

}  // namespace gpufs

// Atomic words with the scope in the type. They map directly to the compilers' own atomic
// operations (nvcc >= 12.8, g++). So device code needs no library header, compiles in milliseconds
// under run-time compilers, and ThreadSanitizer understands it. Only the orders that the project
// uses exist.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs {

enum class scope {
  device,  // threads of one GPU, or of the CPU device: memory of the arena
  // GPU on one side, host on the other: memory of the channel. No read-modify-write: PCIe has none.
  system
};

// One word that several threads read and write. Aggregate and trivially copyable: it lives in raw
// memory that is zeroed, never constructed. Must not be copied while other threads use it.
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

  // For waiting loops: call load_for_wait() until it returns the awaited value, then end_wait().
  // Together they are an acquire. Reason: on a GPU an acquire per poll would invalidate the
  // multiprocessor's first-level cache each time. A fence instead would be worse: one of system
  // scope waits for the bus, and the fences of all warps wait for each other.
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

  // A store after which the other side may overwrite what the caller's group has read.
  // Precondition: the values read have arrived and are in use. It publishes nothing else. A GPU
  // needs no fence, because it does not redo a load that has completed (docs/memory_model.md, 4).
  // Strict code uses a release, so that the model and ThreadSanitizer see the order.
  GPUFS_HD void store_after_reads(T v) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    store_relaxed(v);
#else
    store_release(v);
#endif
  }

  // A store that is ordered before the caller's next load_after_store() of another word. If two
  // sides each store one word and then load the other's, at least one of them sees the other's
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

  // Adds without returning the old value. The word must lie in global memory; the instruction names
  // that space, because for a pointer that might be into shared memory the compiler emits two
  // branches and a loop for a 64-bit addition.
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

  // An acquire for callers that access what it orders only in a branch on the result. A GPU waits
  // for the result before the branch (docs/memory_model.md, 3), so it keeps its first-level cache.
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

  // Precondition and order as for store_after_reads().
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

  // Sets bits without returning the old value. For words through which the writers of a page and
  // the threads that write it back hand its bytes to each other (cache/dirty.cuh). The word must
  // lie in global memory, as for add_relaxed().
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
  // Raises the value to `v` if it is less. Release: a thread that acquires `v` sees the caller's
  // earlier writes.
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

  // As fetch_max_release(), and an acquire: the caller sees the writes before the store whose value
  // it finds.
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

  // Success and failure store the value seen in `expected`. The name gives the order of a success;
  // a failure is relaxed. On a GPU each release costs a fence and each acquire the first-level
  // cache, so callers use the weakest order that they need.
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
  // For callers that afterwards read nothing that other threads stored. On a GPU it is a release,
  // which keeps the first-level cache. On the CPU device it is acquire and release, which costs the
  // same there.
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

// Two adjacent words in global memory, 16-byte aligned.
struct word_pair {
  std::uint64_t first, second;
};

// Loads both words with one instruction. Each word is an access of its own, and the two are
// unordered.
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
// One access of 16 bytes, also next to narrower accesses (docs/memory_model.md, 1). The machine
// instructions are the same as for two words.
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

// A word, and next to it the tag that says which version of the word is valid. The writer stores a
// tag that no reader expects, then the word, then the new tag. Between the first two stores the
// writer makes other stores, with release and acquire. A reader that finds the expected tag has the
// word that belongs to it.
//
// Where the load takes several accesses, the returned tag is 0, which is never expected, if the tag
// changed meanwhile. Otherwise a reader that stalls between its loads would pair a word with a
// later tag, which may look the same to a reader that compares only a part of the tag.
GPUFS_HD inline word_pair load_tagged(const atomic_word<std::uint64_t>* words) {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  return load_16_relaxed(words);
#else
  // Acquire: pairs with the store of the tag. The word is at least as new as this tag.
  const std::uint64_t tag = words[1].load_acquire();
  GPUFS_SCHEDULE_POINT("tagged.load_word");
  // Acquire: pairs with the store of the word. A tag read after the word is at least as new as the
  // word.
  const std::uint64_t word = words[0].load_acquire();
  GPUFS_SCHEDULE_POINT("tagged.load");
  return {word, words[1].load_relaxed() == tag ? tag : 0};
#endif
}
// Stores the word, or its tag. Pairs with load_tagged().
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

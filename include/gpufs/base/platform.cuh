// The differences between a GPU and the CPU device. Includes no CUDA header, so plain g++ and
// run-time compilers can include it.
#pragma once

#include "gpufs/base/standard.cuh"

#if defined(__CUDACC__)
#define GPUFS_HD __host__ __device__
#else
#define GPUFS_HD
#endif

#if !defined(__CUDA_ARCH__)
#include <sched.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#endif

#if defined(__CUDA_ARCH__)
#define GPUFS_UNROLL _Pragma("unroll")
#define GPUFS_NO_UNROLL _Pragma("unroll 1")
#else
#define GPUFS_UNROLL
#define GPUFS_NO_UNROLL
#endif

// Marks functions for misses, opens and waits. They stay out of line, which keeps hits short and
// compile times low.
#if defined(__CUDA_ARCH__)
#define GPUFS_OUT_OF_LINE __noinline__
#else
#define GPUFS_OUT_OF_LINE
#endif

// Asserts an invariant of the implementation, never a condition of input or I/O. Enabled in test
// builds of the CPU device and in GPU tests (GPUFS_CHECKS=1). A violation ends the program at once,
// because continuing would corrupt data that others read.
#if defined(GPUFS_CHECKS) && GPUFS_CHECKS
#if defined(__CUDA_ARCH__)
#define GPUFS_ASSERT(condition) ((condition) ? (void)0 : __trap())
#else
#define GPUFS_ASSERT(condition)                                                                 \
  ((condition)                                                                                  \
       ? (void)0                                                                                \
       : (std::fprintf(stderr, "gpufs: %s:%d: violated: %s\n", __FILE__, __LINE__, #condition), \
          std::abort()))
#endif
#else
#define GPUFS_ASSERT(condition) ((void)sizeof(!(condition)))
#endif

// A point where tests delay a thread of the CPU device to widen a race. tests/support/schedule.cpp
// defines the function.
#if defined(GPUFS_SCHEDULE_POINTS) && !defined(__CUDA_ARCH__)
namespace gpufs::testing {
void schedule_point(const char* name);
}
#define GPUFS_SCHEDULE_POINT(name) ::gpufs::testing::schedule_point(name)
#else
#define GPUFS_SCHEDULE_POINT(name) ((void)0)
#endif

// 1 (strict): device code relies only on the memory model of PTX. 0: it also relies on the
// assumptions in docs/memory_model.md, which saves each hit a trip to the second-level cache.
// Forced to 1 where a load of 16 bytes cannot be one access: `.b128` needs PTX ISA 8.3, which is
// CUDA 12.3. The CPU device is always strict.
#if !defined(GPUFS_STRICT_MEMORY)
#define GPUFS_STRICT_MEMORY 0
#endif
#if defined(__CUDA_ARCH__) &&                                                                      \
    (!defined(__CUDACC_VER_MAJOR__) || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1203 || \
     __CUDA_ARCH__ < 700)
#undef GPUFS_STRICT_MEMORY
#define GPUFS_STRICT_MEMORY 1
#endif

namespace gpufs {

namespace platform {

// Whether device code may rely on the assumptions of docs/memory_model.md.
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
inline constexpr bool uses_weak_assumptions = true;
#else
inline constexpr bool uses_weak_assumptions = false;
#endif

#if defined(__CUDA_ARCH__)
inline constexpr bool is_gpu = true;
#else
inline constexpr bool is_gpu = false;
#endif

#if !defined(__CUDA_ARCH__)
// Position of the running OS thread in the launch that it serves. gpufs::launch sets it.
struct cpu_position {
  std::uint32_t block = 0;
  std::uint32_t block_count = 1;
  std::uint32_t processor = 0;
  char* scratch = nullptr;
};

inline cpu_position& position_on_cpu() {
  static thread_local cpu_position position;
  return position;
}
#endif

// A clock for durations, in nanoseconds. A GPU's clock may step back a little, so compare readings
// only with the functions below.
GPUFS_HD inline std::uint64_t now_ns() {
#if defined(__CUDA_ARCH__)
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
#else
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
#endif
}

// Nanoseconds from one reading of now_ns() to another. 0 if the clock stepped back in between.
GPUFS_HD constexpr std::uint64_t duration_ns(std::uint64_t begin, std::uint64_t end) {
  return begin < end ? end - begin : 0;
}
GPUFS_HD inline std::uint64_t elapsed_ns(std::uint64_t begin) {
  return duration_ns(begin, now_ns());
}

// The multiprocessor that runs the caller; on the CPU device the pool thread. Only a hint for
// spreading load: a GPU may move a block, so two calls may return different numbers.
GPUFS_HD inline std::uint32_t processor() {
#if defined(__CUDA_ARCH__)
  std::uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
#else
  return position_on_cpu().processor;
#endif
}

// A number that distinguishes the launches of one GPU context. The replays of a CUDA graph may
// share a number. 0 on the CPU device.
GPUFS_HD inline std::uint64_t grid_number() {
#if defined(__CUDA_ARCH__)
  std::uint64_t number;
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(number));
  return number;
#else
  return 0;
#endif
}

// The index, of `count` parts, that the caller's processor uses. Usually there is one part per
// processor, and no division.
GPUFS_HD inline std::uint32_t part_of_processor(std::uint32_t count) {
  const std::uint32_t p = processor();
  return p < count ? p : p % count;
}

// Tells the compiler that a pointer is into global memory. For a pointer that might be into shared
// memory, the compiler emits two branches and a loop for an atomic addition.
GPUFS_HD inline char* assume_global(char* p) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// Returns when `value`, the result of a load, has arrived. Loads later in the program happen later.
// The CPU device needs no wait: its loads are not reordered (x86), or a fence orders them.
GPUFS_HD inline void wait_for_arrival([[maybe_unused]] std::uint64_t value) {
#if defined(__CUDA_ARCH__) && GPUFS_STRICT_MEMORY
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#elif defined(__CUDA_ARCH__)
  // An instruction that needs the value. The multiprocessor issues a warp's instructions in order,
  // so later instructions wait. The branch is practically never taken, and is harmless.
  asm volatile(
      "{\n .reg .pred p;\n setp.eq.u64 p, %0, 0x9e3779b97f4a7c15;\n @p membar.cta;\n}" ::"l"(value)
      : "memory");
#elif !defined(__SANITIZE_THREAD__)
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

// Backs off in a waiting loop. `attempt` counts the calls. On a GPU the sleep grows with `attempt`,
// up to `longest_ns`; without it, groups that poll host memory would take the bus from the
// transfers that they wait for.
GPUFS_HD inline void pause(std::uint32_t attempt,
                           [[maybe_unused]] std::uint32_t longest_ns = 1024) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t ns = attempt < 2 ? 32u : attempt < 64 ? attempt * attempt * 16u : 65536u;
  __nanosleep(ns < longest_ns ? ns : longest_ns);
#else
  if (attempt < 32) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } else if (attempt < 256) {
    sched_yield();
  } else {
    const timespec t{0, 50000};
    nanosleep(&t, nullptr);
  }
#endif
}

}  // namespace platform

// 16 bytes that one instruction moves. To other threads it may be several accesses, in any order.
struct alignas(16) vector16 {
  std::uint32_t x, y, z, w;
};

}  // namespace gpufs

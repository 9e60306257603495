// Optimistic reads: a single thread reads a few bytes of a cached page without a pin (rule 4 of
// slot_state.cuh). Two atomic additions and a fence per access would cost more than the access.
#pragma once

#include "gpufs/cache/page_cache.cuh"

namespace gpufs::detail {

// Whether this build uses optimistic reads. The bytes are stored by plain stores, so these loads
// are a race in PTX's memory model.
inline constexpr bool glances = !platform::is_gpu || platform::uses_weak_assumptions;

// A page found in the cache without a pin; it may be gone by now.
struct optimistic_read {
  std::uint32_t frame;
  std::uint32_t generation;
  std::uint32_t valid;  // Bytes of the page that the file has.
  bool there;
};

// Reads what a frame holds. Called by one thread; does not wait.
GPUFS_HD inline optimistic_read look_at(const frame_table& frames, std::uint32_t frame_number,
                                        const slot_key& key) {
  const slot_header& header = frames.header(frame_number);
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  // One sector, in two accesses, each from one moment. The same generation in both means one key.
  // The caller's loads of the page come later: a GPU issues no load before the result that decides
  // on it (docs/memory_model.md, 3 and 5).
  const slot_header::halves seen = header.load_halves();
  const std::uint32_t state = seen.state(), generation = seen.generation(), valid = seen.valid();
  const std::uint64_t high = seen.front.second, low = seen.back.first;
#else
  // Acquires: each load comes before the next one, in this order.
  const std::uint32_t generation = header.generation.load_acquire();
  const std::uint32_t state = header.state.load();
  const std::uint64_t high = header.key_high.load_acquire(), low = header.key_low.load_acquire();
  const std::uint32_t valid = header.valid.load_acquire();
#endif
  const bool there = slot_state::phase(state) == slot_phase::resident &&
                     slot_key{high, low} == key && (valid & slot_header::unknown) == 0;
  return {frame_number, generation, valid & ~slot_header::read_ahead, there};
}

// Finds the frames of several pages. Each step is done for all pages, so that their latencies
// overlap; the exception is an entry outside the preferred sector of its bucket. Called by one
// thread; does not wait.
template <unsigned N>
GPUFS_HD inline void find_at_a_glance(const mount_ref& fs, const slot_key (&keys)[N],
                                      optimistic_read (&found)[N]) {
  const frame_table frames(fs);
  const auto index = frames.index();
  typename hash_index<frame_table>::sector sectors[N];
  GPUFS_UNROLL
  for (unsigned i = 0; i < N; ++i) sectors[i] = index.load_sector(hash(keys[i]));
  std::uint32_t guesses[N];
  GPUFS_UNROLL
  for (unsigned i = 0; i < N; ++i) guesses[i] = index.guess_of(sectors[i], hash(keys[i]));
  GPUFS_UNROLL
  for (unsigned i = 0; i < N; ++i) {
    if (guesses[i] == 0) guesses[i] = index.guess_behind(hash(keys[i]));
  }
  GPUFS_UNROLL
  for (unsigned i = 0; i < N; ++i) {
    // Without a guess frame 0 is checked; if it holds the page, it is as good.
    found[i] = look_at(frames, guesses[i] == 0 ? 0 : guesses[i] - 1, keys[i]);
  }
}

// Returns once the bytes are loaded; called before is_still_there(). `last`: a value computed from
// all loaded words.
GPUFS_HD inline void wait_until_read(std::uint64_t last) {
  platform::wait_for_arrival(last);
  GPUFS_SCHEDULE_POINT("glance.check");
}
// Whether the bytes read since belong to the page: the frame's generation is unchanged.
GPUFS_HD inline bool is_still_there(const mount_ref& fs, const optimistic_read& g) {
  return frame_table(fs).header(g.frame).generation.load_relaxed() == g.generation;
}

// Loads a word of a frame that another thread may be changing. Bypasses the first-level cache,
// which may hold the frame's previous bytes.
template <class Word>
#if !defined(__CUDA_ARCH__) && defined(__SANITIZE_THREAD__)
__attribute__((
    no_sanitize("thread")))  // The generation check detects a race; the word is not used then.
#endif
GPUFS_HD inline Word load_at_a_glance(const char* from) {
  static_assert(sizeof(Word) == 4 || sizeof(Word) == 8, "one access");
#if defined(__CUDA_ARCH__)
  Word word;
  if constexpr (sizeof(Word) == 8)
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  else asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
#else
  return *reinterpret_cast<const volatile Word*>(from);
#endif
}

}  // namespace gpufs::detail

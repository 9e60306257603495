// Reading a few bytes of a cached page without a pin (rule 4 of slot_state.cuh): for single
// threads, to whom two atomic additions and a fence for each access would cost more than the
// access.
#pragma once

#include "gpufs/cache/page_cache.cuh"

namespace gpufs::detail {

// Whether words are read so at all: the bytes are stored plainly, which PTX's memory model calls a
// race with these loads.
inline constexpr bool glances = !platform::is_gpu || platform::takes_short_ways;

// A page that was in the cache a moment ago.
struct glimpse {
  std::uint32_t frame;
  std::uint32_t generation;
  std::uint32_t valid;  // bytes of it that the file has
  bool there;
};

// What a frame holds. By one thread; does not wait.
GPUFS_HD inline glimpse look_at(const frame_table& frames, std::uint32_t frame_number,
                                const slot_key& key) {
  const slot_header& header = frames.header(frame_number);
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  // One sector, in two accesses; each is one moment, and the generation in both says that they are
  // of one key. What the caller loads of the page comes later: a GPU does not load ahead of an
  // answer that says whether to (docs/memory_model.md, 3 and 5).
  const slot_header::halves seen = header.load_halves();
  const std::uint32_t state = seen.state(), generation = seen.generation(), valid = seen.valid();
  const std::uint64_t high = seen.front.second, low = seen.back.first;
#else
  // In this order: acquires, so that each comes before the next.
  const std::uint32_t generation = header.generation.load_acquire();
  const std::uint32_t state = header.state.load();
  const std::uint64_t high = header.key_high.load_acquire(), low = header.key_low.load_acquire();
  const std::uint32_t valid = header.valid.load_acquire();
#endif
  const bool there = slot_state::phase(state) == slot_phase::resident &&
                     slot_key{high, low} == key && (valid & slot_header::unknown) == 0;
  return {frame_number, generation, valid & ~slot_header::read_ahead, there};
}

// Where pages lie now, if they can be found at once; each step for all of them, so that their
// latencies are one, but for the few whose entries lie elsewhere in their buckets. Called by one
// thread; does not wait.
template <unsigned N>
GPUFS_HD inline void find_at_a_glance(const mount_ref& fs, const slot_key (&keys)[N],
                                      glimpse (&found)[N]) {
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
    // Without a guess some frame: if that holds the page, it may be used as well.
    found[i] = look_at(frames, guesses[i] == 0 ? 0 : guesses[i] - 1, keys[i]);
  }
}

// Before is_still_there(). `last`: something that was made of all that was read.
GPUFS_HD inline void wait_until_read(std::uint64_t last) {
  platform::wait_for_arrival(last);
  GPUFS_SCHEDULE_POINT("glance.check");
}
// Whether what was read since is the page's.
GPUFS_HD inline bool is_still_there(const mount_ref& fs, const glimpse& g) {
  return frame_table(fs).header(g.frame).generation.load_relaxed() == g.generation;
}

// A word of a frame that somebody may be changing. Not from a cache of the multiprocessor, which
// may hold what the frame held before.
template <class Word>
#if !defined(__CUDA_ARCH__) && defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))  // the check finds a race out, and the word is not used
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

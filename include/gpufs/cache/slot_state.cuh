// The state word and the key that page frames and open-file records share.
//
// State machine (model: models/slot_state.pml). The word holds one of four states and a pin count.
//
//      free ----claim----> evicting ----begin_load----> loading ----publish----> resident
//       ^                   ^   |  ^                       |                        |
//       |                   |   |  +------fail_load--------+                        |
//       +-----release-------|---+  +------claim (no pins but the claimer's own)-----+
//                           +--- (the claimer owns the slot alone)
//
//  * free: no thread owns the slot, and no index entry leads to it. Pins may be above 0 for a
//    moment: a reader may follow an index entry that it read earlier, or a waiter may still read
//    the error of a failed load.
//  * evicting: one thread owns the slot. Its compare-and-swap came from (free, 0 pins), from
//    (resident, 0 pins), or from (resident, 1 pin) where that pin was its own and ends here. Only
//    the owner changes the key, and the owner removes the slot from the index.
//  * loading: the group that loads the bytes owns and pins the slot. Other groups find the slot
//    through the index; they pin it and wait, and hold no unloaded slot of their own.
//  * resident: the bytes are complete. Only writes, stores in mappings and truncations change them.
//    A thread that holds a pin may read them until it unpins.
//
// Rules.
//  1. The word changes only by atomic read-modify-write. Pins come and go at any time, so a plain
//     store would lose some.
//  2. Only the owner changes the key, in state evicting. The key is stable for a thread that pinned
//     the slot while it was loading or resident, because a claim needs that no other thread has a
//     pin.
//  3. A slot becomes loading and appears in the index in one critical section of its key's home
//     latch. So no group waits for a load that does not take place.
//  4. Each change of the key raises the generation. Apart from writes, of which a reader gets the
//     old or the new bytes, the bytes change only after the next change of the key. So a reader
//     needs no pin: it reads the generation, finds the state resident and the key right, reads
//     bytes, and finds the same generation again (glance.cuh).
//  5. A thread pins first and checks afterwards: it adds the pin, then looks at the returned state
//     and at the key. It gives a wrong pin back; that pin has changed nothing.
#pragma once

#include "gpufs/base/atomic.cuh"

namespace gpufs {

// A key: two words. Keys are compared in full, never by hash alone.
struct slot_key {
  std::uint64_t high;
  std::uint64_t low;
  GPUFS_HD bool operator==(const slot_key& other) const {
    return high == other.high && low == other.low;
  }
};

// A bijective mixer (the finalizer of MurmurHash3): equal hashes of different keys stay rare.
GPUFS_HD inline std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Distinct for all keys with the same high word, that is, for all pages of a file.
GPUFS_HD inline std::uint64_t hash(const slot_key& key) {
  return mix(key.low + (key.high + 1) * 0x9e3779b97f4a7c15ull);
}

enum class slot_phase : std::uint32_t { free = 0, evicting = 1, loading = 2, resident = 3 };

class slot_state {
 public:
  static constexpr std::uint32_t phase_unit = 1u << 30;
  static constexpr std::uint32_t pins_mask = phase_unit - 1;

  GPUFS_HD static slot_phase phase(std::uint32_t word) {
    return static_cast<slot_phase>(word / phase_unit);
  }
  GPUFS_HD static std::uint32_t pins(std::uint32_t word) { return word & pins_mask; }
  GPUFS_HD static std::uint32_t unpinned(slot_phase p) {
    return static_cast<std::uint32_t>(p) * phase_unit;
  }

  // Acquire: pairs with the release in publish() and fail_load(). Without it the caller could read
  // bytes, or an error, older than the state that it saw.
  GPUFS_HD std::uint32_t load() const { return word_.load_acquire(); }
  GPUFS_HD std::uint32_t peek() const { return word_.load_relaxed(); }
  // For a waiting loop, and after it (atomic_word::load_for_wait).
  GPUFS_HD std::uint32_t load_for_wait() const { return word_.load_for_wait(); }
  GPUFS_HD void end_wait() const { word_.end_wait(); }

  // Acquire: as load(). The key that the caller reads next belongs to the returned state.
  GPUFS_HD std::uint32_t pin() { return word_.fetch_add_acquire(1); }

  // Release: pairs with the acquire of a claimer's compare-and-swap. Without it the claimer could
  // overwrite bytes that the caller still reads. Returns the word after the change.
  GPUFS_HD std::uint32_t unpin() {
    const std::uint32_t old = word_.fetch_add_release(~0u);
    GPUFS_ASSERT(pins(old) > 0);
    return old - 1;
  }

  // As unpin(), for a caller whose group has stored all that it read: every load has returned its
  // value, so no fence is needed.
  GPUFS_HD void unpin_copied() {
    GPUFS_ASSERT(pins(peek()) > 0);
    word_.add_after_reads(~0u);
  }

  // As unpin(), for a caller that may have no pin. Returns false when the slot is not resident or
  // has no pin. The first check keeps a surplus unpin from changing the word. The second check is
  // needed because two threads may pass the first one together; then the word is wrong for a
  // moment, in which other threads see the slot as loading. This is not a compare-and-swap loop,
  // because such a loop is slow when many groups unpin one page (docs/decisions/cache.md).
  [[nodiscard]] GPUFS_HD bool try_unpin() {
    return is_pinned(peek()) && ends_pin(word_.fetch_add_release(~0u));
  }
  // The same for callers of unpin_copied().
  [[nodiscard]] GPUFS_HD bool try_unpin_copied() {
    return is_pinned(peek()) && ends_pin(word_.fetch_add_after_reads(~0u));
  }

  // Claims a free or resident slot without pins. Acquire: pairs with the release in the last
  // reader's unpin(). Without it the owner's stores could overtake that reader's loads.
  [[nodiscard]] GPUFS_HD bool claim(slot_phase from) {
    std::uint32_t expected = unpinned(from);
    return word_.compare_exchange_acquire(expected, unpinned(slot_phase::evicting));
  }

  // Claims a resident slot whose only pin is the caller's; ends that pin. Acquire: as claim().
  [[nodiscard]] GPUFS_HD bool claim_pinned() {
    std::uint32_t expected = unpinned(slot_phase::resident) + 1;
    return word_.compare_exchange_acquire(expected, unpinned(slot_phase::evicting));
  }

  // evicting -> loading, with one pin for the loader. Release: a thread that finds the slot sees
  // the new key.
  GPUFS_HD void begin_load() { move(slot_phase::evicting, slot_phase::loading, 1); }
  // loading -> resident. Release: publishes the bytes of the whole group. The group's barrier
  // orders the members' stores before this.
  GPUFS_HD void publish() { move(slot_phase::loading, slot_phase::resident, 0); }
  // loading -> evicting; the loader keeps its pin. Release: publishes the error that waiters read.
  GPUFS_HD void fail_load() { move(slot_phase::loading, slot_phase::evicting, 0); }
  // evicting -> free. Release: the next claimer sees the index without this slot.
  GPUFS_HD void release() { move(slot_phase::evicting, slot_phase::free, 0); }

 private:
  GPUFS_HD static bool is_pinned(std::uint32_t word) {
    return phase(word) == slot_phase::resident && pins(word) != 0;
  }
  // `before`: the word before the caller took a pin from it.
  GPUFS_HD bool ends_pin(std::uint32_t before) {
    if (is_pinned(before)) return true;
    word_.add_relaxed(1);
    return false;
  }
  GPUFS_HD void move(slot_phase from, slot_phase to, std::uint32_t pins_added) {
    const std::uint32_t old = word_.fetch_add_release(unpinned(to) - unpinned(from) + pins_added);
    GPUFS_ASSERT(phase(old) == from);
    (void)old;
  }

  atomic_word<std::uint32_t> word_;
};

// The common header of all slots: two halves of 16 bytes. A GPU can load each half in one access.
struct alignas(16) slot_header {
  slot_state state;
  // Counts changes of the key; at most generation_max.
  atomic_word<std::uint32_t> generation;
  atomic_word<std::uint64_t> key_high;
  atomic_word<std::uint64_t> key_low;
  // The generation again, so that this half of the header also names its key; or the -errno of a
  // failed load, which the loader stores while loading and the waiters read.
  atomic_word<std::int32_t> error_or_generation;
  // For a page: the bytes that the file has; the rest of the frame is zero. Also holds the bits
  // `read_ahead` and `unknown`.
  atomic_word<std::uint32_t> valid;

  static constexpr std::uint32_t generation_max = (1u << 31) - 1;

  // A mark in `valid`. A group that reads this page and loads runs clears the mark, and requests
  // the pages that follow (file/bulk.cuh).
  static constexpr std::uint32_t read_ahead = 1u << 30;
  // In `valid` until the page is loaded.
  static constexpr std::uint32_t unknown = 1u << 31;

  // Relaxed: the state word's orders carry the key (rule 2). A reader without a pin may see halves
  // of two keys; it pins and checks before it trusts them.
  GPUFS_HD slot_key key() const { return {key_high.load_relaxed(), key_low.load_relaxed()}; }

  // The -errno of the load that the caller waited for, or 0. The caller holds a pin.
  GPUFS_HD std::int32_t failure() const {
    const std::int32_t error = error_or_generation.load_relaxed();
    return error < 0 ? error : 0;
  }
  // Called before fail_load(). `error`: -errno or 0.
  GPUFS_HD void set_failure(std::int32_t error) { error_or_generation.store_relaxed(error); }

#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  // Both halves, each from one moment. They belong to one key if both have the same generation;
  // otherwise valid() returns `unknown`.
  struct halves {
    word_pair front, back;
    GPUFS_HD std::uint32_t state() const { return static_cast<std::uint32_t>(front.first); }
    GPUFS_HD std::uint32_t generation() const {
      return static_cast<std::uint32_t>(front.first >> 32);
    }
    GPUFS_HD std::uint32_t valid() const {
      return static_cast<std::uint32_t>(back.second) == generation()
                 ? static_cast<std::uint32_t>(back.second >> 32)
                 : unknown;
    }
  };
  // Two loads in flight together.
  GPUFS_HD halves load_halves() const {
    const word_pair back = load_16_relaxed(&key_low);
    return {load_16_relaxed(this), back};
  }
  GPUFS_HD halves load_halves_acquire() const {
    const word_pair back = load_16_relaxed(&key_low);
    return {load_16_acquire(this), back};
  }
#endif

  // What the caller does with a pinned page.
  enum class use { loads, stores };
  // What the slot held while the caller had it pinned. `state`: the word before the pin.
  struct seen {
    std::uint32_t state;
    slot_key key;
    std::uint32_t valid;
  };
  // Pins the slot and reads its key and `valid`. Called by one thread. For loads this is an
  // acquire, as pin(). For stores it is relaxed on a GPU: a GPU does not issue a store before the
  // result that decides on it, and the first-level cache stays valid.
  template <use for_what>
  GPUFS_HD seen pin_and_look() {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    // Three requests for one sector, in flight together. An acquire of the pin itself would hold
    // the two loads back until its result is there.
    //
    // The front half is from after the pin, because a thread's accesses to one word stay in order.
    // So its generation is that of the pinned slot. Its acquire serves as the pin's acquire too: it
    // reads the word that the pin stored. The back half may be from before the pin; then its
    // generation differs.
    std::uint32_t before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(this))
                 : "memory");
    const halves h = for_what == use::stores ? load_halves() : load_halves_acquire();
    return {before, {h.front.second, h.back.first}, h.valid()};
#else
    const std::uint32_t before = state.pin();
    return {before, key(), valid.load_relaxed()};
#endif
  }

  // Called by the owner, in state evicting. A reader that sees the new key or generation and then
  // checks the state sees evicting, or a later state.
  GPUFS_HD void set_key(const slot_key& key) {
    const std::uint32_t next = (generation.load_relaxed() + 1) & generation_max;
    generation.store_relaxed(next);
    key_high.store_relaxed(key.high);
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    // One store for both, so that no reader sees the new key with the previous page's length.
    store_16_relaxed(&key_low, {key.low, next | std::uint64_t{unknown} << 32});
#else
    valid.store_relaxed(unknown);
    error_or_generation.store_relaxed(static_cast<std::int32_t>(next));
    key_low.store_relaxed(key.low);
#endif
  }
};
static_assert(sizeof(slot_header) == 32 && alignof(slot_header) == 16,
              "pin, key and length of a hit are one sector, in two halves");

}  // namespace gpufs

// The state word and key that page frames and open-file records share. One protocol, one state
// machine, one model (models/slot_state.pml).
//
// State machine. A slot is in one of four states; beside the state its word counts pins.
//
//      free ----claim----> evicting ----begin_load----> loading ----publish----> resident
//       ^                   ^   |  ^                       |                        |
//       |                   |   |  +------fail_load--------+                        |
//       +-----release-------|---+  +------claim (no pins but the claimer's own)-----+
//                           +--- (the claimer owns the slot alone)
//
//  * free nobody's; in no index entry. Pins may be above 0 for a moment: a reader that followed an
//    index entry read before the slot was taken from it, or a waiter that still reads the error of
//    a failed load.
//  * evicting owned by the one thread whose compare-and-swap brought it here, from (free, 0 pins),
//    (resident, 0 pins), or (resident, 1 pin) if that is its own, which ends with it. The owner
//    alone may change the key, and removes the slot from the index.
//  * loading owned by the group that loads the bytes; pinned by it; found through the index by
//    others, who pin it and wait without holding an unloaded slot of their own.
//  * resident  the bytes are whole and do not change. Whoever pinned it may read until it unpins.
//
// Rules.
//  1. The word changes only by atomic read-modify-write: pins come and go at any time, so a plain
//     store would lose some.
//  2. The key changes only in state evicting, by the owner. It is stable for whoever holds a pin
//     that it got when the state was loading or resident, because a claim needs 0 pins of others.
//  3. A slot becomes loading, and appears in the index, in one critical section of its key's home
//     latch: nobody waits for a load that does not take place.
//  4. Each change of the key raises the generation. Whoever reads the generation, then finds the
//     state resident and the key right, then reads bytes, and then finds the same generation, has
//     read that page's bytes without a pin: they change only behind the next change of the key.
//     (glance.cuh)
//  5. A pin is taken first and checked afterwards: fetch_add, then look at the state it returned
//     and at the key. A pin that turns out wrong is given back, and has changed nothing.
#pragma once

#include "gpufs/base/atomic.cuh"

namespace gpufs {

// What a slot holds: two words that together are compared exactly, never by hash alone.
struct slot_key {
  std::uint64_t high;
  std::uint64_t low;
  GPUFS_HD bool operator==(const slot_key& other) const {
    return high == other.high && low == other.low;
  }
};

// A bijective mixer (the finalizer of MurmurHash3), so that equal hashes of different keys stay
// rare.
GPUFS_HD inline std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Different for all keys with the same high word: for all pages of a file.
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

  // Acquire: pairs with the release of publish() and fail_load(); without it the bytes or the error
  // read afterwards could be older than the state that allowed reading them.
  GPUFS_HD std::uint32_t load() const { return word_.load_acquire(); }
  GPUFS_HD std::uint32_t peek() const { return word_.load_relaxed(); }
  // For a loop that waits, and behind it (atomic_word::load_for_wait).
  GPUFS_HD std::uint32_t load_for_wait() const { return word_.load_for_wait(); }
  GPUFS_HD void end_wait() const { word_.end_wait(); }

  // Acquire: as load(); the key read afterwards is the one that belongs to the state returned.
  GPUFS_HD std::uint32_t pin() { return word_.fetch_add_acquire(1); }

  // Release: my reads of the bytes are done before a claimer, whose compare-and-swap acquires,
  // overwrites them. Returns the word as it is afterwards.
  GPUFS_HD std::uint32_t unpin() {
    const std::uint32_t old = word_.fetch_add_release(~0u);
    GPUFS_ASSERT(pins(old) > 0);
    return old - 1;
  }

  // As unpin(), for a caller whose group has put all that it read where it wanted it: what is in
  // use has arrived.
  GPUFS_HD void unpin_copied() {
    GPUFS_ASSERT(pins(peek()) > 0);
    word_.add_after_reads(~0u);
  }

  // As unpin(), for a caller who may have no pin: false when the slot is not resident or nobody has
  // pinned it. Looked at before, so that a pin too much given back changes nothing; and afterwards,
  // because two may do that at once: then the word is wrong for a moment, in which others take the
  // slot for loading. Never a loop of exchanges: many groups that unpin one page would let only a
  // few million of them through in a second.
  [[nodiscard]] GPUFS_HD bool try_unpin() {
    return is_pinned(peek()) && ends_pin(word_.fetch_add_release(~0u));
  }
  // The same for a caller as that of unpin_copied().
  [[nodiscard]] GPUFS_HD bool try_unpin_copied() {
    return is_pinned(peek()) && ends_pin(word_.fetch_add_after_reads(~0u));
  }

  // Takes a free or resident slot that nobody has pinned. Acquire: pairs with the unpin of the last
  // reader, so that what the owner writes cannot overtake what that reader read.
  [[nodiscard]] GPUFS_HD bool claim(slot_phase from) {
    std::uint32_t expected = unpinned(from);
    return word_.compare_exchange_acquire(expected, unpinned(slot_phase::evicting));
  }

  // The same of a resident slot that the caller has pinned, and nobody else; the pin is gone then.
  [[nodiscard]] GPUFS_HD bool claim_pinned() {
    std::uint32_t expected = unpinned(slot_phase::resident) + 1;
    return word_.compare_exchange_acquire(expected, unpinned(slot_phase::evicting));
  }

  // evicting -> loading, with one pin for the loader. Release: the key is written before a finder
  // can trust it.
  GPUFS_HD void begin_load() { move(slot_phase::evicting, slot_phase::loading, 1); }
  // loading -> resident. Release: publishes the bytes that the group wrote (its barrier ordered
  // them before this).
  GPUFS_HD void publish() { move(slot_phase::loading, slot_phase::resident, 0); }
  // loading -> evicting, the loader's pin kept. Release: publishes the error that waiters read.
  GPUFS_HD void fail_load() { move(slot_phase::loading, slot_phase::evicting, 0); }
  // evicting -> free. Release: the next claimer sees the index without this slot.
  GPUFS_HD void release() { move(slot_phase::evicting, slot_phase::free, 0); }

 private:
  GPUFS_HD static bool is_pinned(std::uint32_t word) {
    return phase(word) == slot_phase::resident && pins(word) != 0;
  }
  // `before`: what the word was when a pin was taken from it.
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

// The part that every slot begins with: two halves of 16 bytes, each of which a GPU can load as one
// access.
struct alignas(16) slot_header {
  slot_state state;
  atomic_word<std::uint32_t> generation;  // of the key; at most generation_max
  atomic_word<std::uint64_t> key_high;
  atomic_word<std::uint64_t> key_low;
  // The generation, so that this half of the header says of which key it is; or -errno of a failed
  // load, written while loading, read by those who waited for it.
  atomic_word<std::int32_t> error_or_generation;
  atomic_word<std::uint32_t>
      valid;  // of a page: bytes that the file has; the rest of the frame is zero. And read_ahead

  static constexpr std::uint32_t generation_max = (1u << 31) - 1;

  // A mark in `valid`: a group that reads this page, and loads runs, has others loaded that follow
  // (file/bulk.cuh), and takes the mark away.
  static constexpr std::uint32_t read_ahead = 1u << 30;
  // In `valid` while a page is not loaded yet.
  static constexpr std::uint32_t unknown = 1u << 31;

  // Relaxed: the state word's orders carry the key (rule 2). A reader without a pin may see halves
  // of two keys; it then pins, checks and finds out.
  GPUFS_HD slot_key key() const { return {key_high.load_relaxed(), key_low.load_relaxed()}; }

  // Of a load that was waited for: -errno, or 0 for none. By those who have a pin.
  GPUFS_HD std::int32_t failure() const {
    const std::int32_t error = error_or_generation.load_relaxed();
    return error < 0 ? error : 0;
  }
  // Before fail_load(). `error`: -errno or 0.
  GPUFS_HD void set_failure(std::int32_t error) { error_or_generation.store_relaxed(error); }

#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
  // Both halves as they were at one moment each. They are of one key if both say the same
  // generation; else nothing is `valid`.
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
  // Two requests, under way together.
  GPUFS_HD halves load_halves() const {
    const word_pair back = load_16_relaxed(&key_low);
    return {load_16_relaxed(this), back};
  }
  GPUFS_HD halves load_halves_acquire() const {
    const word_pair back = load_16_relaxed(&key_low);
    return {load_16_acquire(this), back};
  }
#endif

  // What a pin is for.
  enum class use { loads, stores };
  // What a slot holds, at a moment at which the caller had pinned it. `state` is from before the
  // pin.
  struct seen {
    std::uint32_t state;
    slot_key key;
    std::uint32_t valid;
  };
  // Pins the slot, and looks. An acquire, as pin(), unless the caller is only going to store into
  // the page: a GPU does not store ahead of an answer that says whether to, and its first-level
  // cache is left alone then. By one thread.
  template <use for_what>
  GPUFS_HD seen pin_and_look() {
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    // Three requests for one sector, under way together: an acquire of the pin itself would keep
    // the others back until its answer is there. The front half has the word that was just pinned,
    // so it is from after the pin: a thread's accesses of one place stay in order. So its
    // generation is that of the pinned slot. The back half may be from before the pin; then it says
    // another generation. Its acquire is that of the pin, too: it reads what the pin stored.
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

  // By the owner. The state says evicting: whoever sees the new key or generation, and looks again,
  // sees that or what came later.
  GPUFS_HD void set_key(const slot_key& key) {
    const std::uint32_t next = (generation.load_relaxed() + 1) & generation_max;
    generation.store_relaxed(next);
    key_high.store_relaxed(key.high);
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    // Together, so that nobody sees the new key with the length of the page before.
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

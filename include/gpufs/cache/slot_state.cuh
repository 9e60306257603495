// The state word and key that page frames and open-file records share. One protocol, one state machine, one model
// (models/slot_state.pml).
//
// State machine. A slot is in one of four states; beside the state its word counts pins.
//
//      free ----claim----> evicting ----begin_load----> loading ----publish----> resident
//       ^                   ^   |  ^                       |                        |
//       |                   |   |  +------fail_load--------+                        |
//       +-----release-------|---+  +------claim (no pins but the claimer's own)-----+
//                           +--- (the claimer owns the slot alone)
//
//  * free      nobody's; in no index entry. Pins may be above 0 for a moment: a reader that followed an index entry
//              read before the slot was taken from it, or a waiter that still reads the error of a failed load.
//  * evicting  owned by the one thread whose compare-and-swap brought it here, from (free, 0 pins), (resident, 0 pins), or
//              (resident, 1 pin) if that is its own, which ends with it. The owner alone may change the key, and removes the
//              slot from the index.
//  * loading   owned by the group that loads the bytes; pinned by it; found through the index by others, who pin it
//              and wait without holding an unloaded slot of their own.
//  * resident  the bytes are whole and do not change. Whoever pinned it may read until it unpins.
//
// Rules.
//  1. The word changes only by atomic read-modify-write: pins come and go at any time, so a plain store would lose some.
//  2. The key changes only in state evicting, by the owner. It is stable for whoever holds a pin that it got when the
//     state was loading or resident, because a claim needs 0 pins of others.
//  3. A slot becomes loading, and appears in the index, in one critical section of its key's home latch: nobody waits
//     for a load that does not take place.
//  4. Each change of the key raises the generation. Whoever reads the generation, then finds the state resident and the key
//     right, then reads bytes, and then finds the same generation, has read that page's bytes without a pin: they change
//     only behind the next change of the key. (glance.cuh)
//  5. A pin is taken first and checked afterwards: fetch_add, then look at the state it returned and at the key. A pin
//     that turns out wrong is given back, and has changed nothing.
#pragma once

#include "gpufs/base/atomic.cuh"

namespace gpufs {

// What a slot holds: two words that together are compared exactly, never by hash alone.
struct slot_key {
  std::uint64_t high;
  std::uint64_t low;
  GPUFS_HD bool operator==(const slot_key& other) const { return high == other.high && low == other.low; }
};

// A bijective mixer (the finalizer of MurmurHash3), so that equal hashes of different keys stay rare.
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

  GPUFS_HD static slot_phase phase(std::uint32_t word) { return static_cast<slot_phase>(word / phase_unit); }
  GPUFS_HD static std::uint32_t pins(std::uint32_t word) { return word & pins_mask; }
  GPUFS_HD static std::uint32_t unpinned(slot_phase p) { return static_cast<std::uint32_t>(p) * phase_unit; }

  // Acquire: pairs with the release of publish() and fail_load(); without it the bytes or the error read afterwards
  // could be older than the state that allowed reading them.
  GPUFS_HD std::uint32_t load() const { return word_.load_acquire(); }
  GPUFS_HD std::uint32_t peek() const { return word_.load_relaxed(); }

  // Acquire: as load(); the key read afterwards is the one that belongs to the state returned.
  GPUFS_HD std::uint32_t pin() { return word_.fetch_add_acquire(1); }

  // Release: my reads of the bytes are done before a claimer, whose compare-and-swap acquires, overwrites them.
  // Returns the word as it is afterwards.
  GPUFS_HD std::uint32_t unpin() {
    const std::uint32_t old = word_.fetch_add_release(~0u);
    GPUFS_ASSERT(pins(old) > 0);
    return old - 1;
  }

  // As unpin(), for a caller whose group has put all that it read where it wanted it: what is in use has arrived.
  GPUFS_HD void unpin_copied() {
    GPUFS_ASSERT(pins(peek()) > 0);
    word_.add_after_reads(~0u);
  }

  // As unpin(), for a caller who may have no pin: false when the slot is not resident or nobody has pinned it. Looked at
  // before, so that a pin too much given back changes nothing; and afterwards, because two may do that at once: then the
  // word is wrong for a moment, in which others take the slot for loading. Never a loop of exchanges: many groups
  // that unpin one page would let only a few million of them through in a second.
  [[nodiscard]] GPUFS_HD bool try_unpin() { return is_pinned(peek()) && ends_pin(word_.fetch_add_release(~0u)); }
  // The same for a caller as that of unpin_copied().
  [[nodiscard]] GPUFS_HD bool try_unpin_copied() {
    return is_pinned(peek()) && ends_pin(word_.fetch_add_after_reads(~0u));
  }

  // Takes a free or resident slot that nobody has pinned. Acquire: pairs with the unpin of the last reader, so that
  // what the owner writes cannot overtake what that reader read.
  [[nodiscard]] GPUFS_HD bool claim(slot_phase from) {
    std::uint32_t expected = unpinned(from);
    return word_.compare_exchange_acquire(expected, unpinned(slot_phase::evicting));
  }

  // The same of a resident slot that the caller has pinned, and nobody else; the pin is gone then.
  [[nodiscard]] GPUFS_HD bool claim_pinned() {
    std::uint32_t expected = unpinned(slot_phase::resident) + 1;
    return word_.compare_exchange_acquire(expected, unpinned(slot_phase::evicting));
  }

  // evicting -> loading, with one pin for the loader. Release: the key is written before a finder can trust it.
  GPUFS_HD void begin_load() { move(slot_phase::evicting, slot_phase::loading, 1); }
  // loading -> resident. Release: publishes the bytes that the group wrote (its barrier ordered them before this).
  GPUFS_HD void publish() { move(slot_phase::loading, slot_phase::resident, 0); }
  // loading -> evicting, the loader's pin kept. Release: publishes the error that waiters read.
  GPUFS_HD void fail_load() { move(slot_phase::loading, slot_phase::evicting, 0); }
  // evicting -> free. Release: the next claimer sees the index without this slot.
  GPUFS_HD void release() { move(slot_phase::evicting, slot_phase::free, 0); }

 private:
  GPUFS_HD static bool is_pinned(std::uint32_t word) { return phase(word) == slot_phase::resident && pins(word) != 0; }
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

// The part that every slot begins with.
struct slot_header {
  slot_state state;
  atomic_word<std::uint32_t> generation;  // of the key
  atomic_word<std::uint64_t> key_high;
  atomic_word<std::uint64_t> key_low;
  atomic_word<std::int32_t> error;  // of a failed load; written while loading, read by those who waited for it
  atomic_word<std::uint32_t>
      valid;  // of a page: bytes that the file has; the rest of the frame is zero. And read_ahead

  // A mark in `valid`: a group that reads this page, and loads runs, has others loaded that follow (file/bulk.cuh), and takes
  // the mark away.
  static constexpr std::uint32_t read_ahead = 1u << 30;
  // In `valid` while a page is not loaded yet.
  static constexpr std::uint32_t unknown = 1u << 31;

  // Relaxed: the state word's orders carry the key (rule 2). A reader without a pin may see halves of two keys; it
  // then pins, checks and finds out.
  GPUFS_HD slot_key key() const { return {key_high.load_relaxed(), key_low.load_relaxed()}; }
  // What a pin is for.
  enum class use { loads, stores };
  // What a slot holds, at a moment at which the caller had pinned it. `state` is from before the pin.
  struct seen {
    std::uint32_t state;
    slot_key key;
    std::uint32_t valid;
  };
  // Pins the slot, and looks. An acquire, as pin(), unless the caller is only going to store into the page: a GPU does not store
  // ahead of an answer that says whether to, and its first-level cache is left alone then. By one thread.
  template <use for_what>
  GPUFS_HD seen pin_and_look() {
#if defined(__CUDA_ARCH__)
    // Three requests for one sector, under way together. PTX promises nothing of their order; that the second-level cache
    // serves requests of a thread for a sector in turn is an assumption about the hardware, as in glance.cuh. If the last were
    // served before the pin, it would have to be so by the time of a whole load to show another key; and what it shows of a
    // page that is not published yet is `unknown`. It empties the first-level cache, as an acquire does, for what is read of
    // the page by ordinary loads.
    const std::uint64_t at = __cvta_generic_to_global(this);
    seen s{};
    std::uint64_t high, low, error_valid;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(s.state) : "l"(at) : "memory");
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1+8];" : "=l"(high) : "l"(at) : "memory");
    if constexpr (for_what == use::stores)
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2+16];"
                   : "=l"(low), "=l"(error_valid)
                   : "l"(at)
                   : "memory");
    else
      asm volatile("ld.acquire.gpu.global.v2.u64 {%0,%1}, [%2+16];"
                   : "=l"(low), "=l"(error_valid)
                   : "l"(at)
                   : "memory");
    s.key = {high, low};
    s.valid = static_cast<std::uint32_t>(error_valid >> 32);
    return s;
#else
    const std::uint32_t before = state.pin();
    return {before, key(), valid.load_relaxed()};
#endif
  }

  // By the owner. The state says evicting: whoever sees the new key or generation, and looks again, sees that or what came later.
  GPUFS_HD void set_key(const slot_key& key) {
    generation.store_relaxed(generation.load_relaxed() + 1);
    key_high.store_relaxed(key.high);
#if defined(__CUDA_ARCH__)
    // Together, so that nobody sees the new key with the length of the page before.
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(&key_low)), "l"(key.low),
                 "l"(std::uint64_t{unknown} << 32)
                 : "memory");
#else
    valid.store_relaxed(unknown);
    key_low.store_relaxed(key.low);
#endif
  }
};
static_assert(sizeof(slot_header) == 32, "pin, key and length of a hit are one sector");

}  // namespace gpufs

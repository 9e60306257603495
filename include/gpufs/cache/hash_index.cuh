// The index: an open hash table of 128-byte buckets, from key to slot. A lookup takes no lock; a
// writer latches the key's home bucket. The project uses it for pages -> frames and for paths ->
// open-file records.
//
// Invariants.
//  1. An entry is 0 (empty) or (tag, slot + 1). Entries never move.
//  2. At most one entry of a key leads to a slot that is loading or resident: an inserter looks
//     again under the home bucket's latch, which every inserter of that key needs. Another entry
//     may lead to a slot that is being evicted; lookups skip it, and its evictor removes it by its
//     exact value.
//  3. An entry that does not fit its home bucket goes to a following bucket. Each full bucket that
//     it passes counts it in `passed`. The inserter raises the count before the entry appears, and
//     the remover lowers it after the entry is gone. So a lookup may stop at the first bucket with
//     count 0.
//  4. The latch guards the set of entries of the keys with this home bucket, nothing else. Latches
//     are never nested, and none is held across a load, a copy or a wait. So waiting for a latch
//     needs no deadline. A bucket's cells also hold entries of other home buckets, so inserters
//     take a cell by compare-and-swap.
#pragma once

#include "gpufs/cache/slot_state.cuh"

namespace gpufs {

struct alignas(128) index_bucket {
  static constexpr std::uint32_t entry_count = 15;
  atomic_word<std::uint64_t> entries[entry_count];
  atomic_word<std::uint32_t> latch;
  atomic_word<std::uint32_t> passed;
};
static_assert(sizeof(index_bucket) == 128, "one line, of four sectors");

// A slot that the caller owns in state evicting; or none.
struct slot_claim {
  std::uint32_t slot;
  bool claimed;
};

// Result of a search. If `found`, `slot` is pinned.
struct pinned_slot {
  std::uint32_t slot;
  slot_phase phase;  // Loading or resident if found.
  bool found;
};

// Result of a search that also waits for other groups' loads. If resident, `slot` is pinned.
struct lookup_result {
  enum class kind : std::uint32_t { absent, resident, failed };
  kind what;
  std::uint32_t slot;
  std::int32_t error;  // If failed: -errno of the load that the caller waited for.
  bool waited;
};

// `Slots` provides `slot_header& header(slot)` and `void unpin(slot)`. The latter gives a pin back,
// and does the work that is due if that was the slot's last pin.
template <class Slots>
class hash_index {
 public:
  // Invariant: bucket_count is a power of two. There are more cells than slots, so there is always
  // a free cell.
  GPUFS_HD hash_index(index_bucket* buckets, std::uint64_t bucket_count, Slots slots)
      : buckets_(buckets), mask_(bucket_count - 1), slots_(slots) {}

  // Pins the slot that holds `key`, loading or resident. Called by one thread. Does not wait for a
  // load. It may give wrong pins back, and `Slots::unpin` may wait: the last unpin of an open file
  // closes the file on the host.
  GPUFS_HD pinned_slot find_and_pin(const slot_key& key) {
    const std::uint64_t h = hash(key);
    std::uint64_t b = h & mask_;
    for (std::uint64_t probes = 0; probes <= mask_; ++probes, b = (b + 1) & mask_) {
      const entries_of_bucket entries = load_entries(b);
      for (std::uint32_t left = entries.that_match(h); left != 0; left &= left - 1) {
        const std::uint32_t slot = entries.slot_of_first(left);
        slot_header& header = slots_.header(slot);
        GPUFS_SCHEDULE_POINT("index.pin");
        const slot_phase phase = slot_state::phase(header.state.pin());
        if ((phase == slot_phase::resident || phase == slot_phase::loading) && header.key() == key)
          return {slot, phase, true};
        slots_.unpin(slot);
      }
      if (buckets_[b].passed.load_relaxed() == 0) break;
    }
    return {0, slot_phase::free, false};
  }

  // Returns a guess at the slot that holds `key`, plus 1; 0: no guess. Reads only the home bucket
  // and pins nothing, so the guess may be wrong in any way. Called by one thread. Does not wait.
  GPUFS_HD std::uint32_t guess(const slot_key& key) const {
    const std::uint64_t h = hash(key);
    const std::uint32_t near = guess_of(load_sector(h), h);
    return near != 0 ? near : guess_behind(h);
  }

  // The three steps of guess(), for callers that overlap many guesses. load_sector() reads one
  // quarter of the bucket, which has nearly every key's entry. guess_of() finds a guess in it.
  // Without one, guess_behind() reads the other quarters.
  struct sector {
    std::uint64_t entries[4];
  };
  GPUFS_HD sector load_sector(std::uint64_t h, std::uint32_t behind = 0) const {
    const std::uint32_t first = (preferred_cell(h) + behind * 4) % 16;
    const atomic_word<std::uint64_t>* const entries = buckets_[h & mask_].entries + first;
    sector s{};
#if defined(__CUDA_ARCH__) && !GPUFS_STRICT_MEMORY
    // The last word of the last sector is no entry. If it matches, it is a wrong guess.
    const word_pair a = load_both(entries), b = load_both(entries + 2);
    s = {{a.first, a.second, b.first, b.second}};
#else
    for (std::uint32_t i = 0; i < 4 && first + i < index_bucket::entry_count; ++i)
      s.entries[i] = entries[i].load_relaxed();
#endif
    return s;
  }
  GPUFS_HD static std::uint32_t guess_of(const sector& s, std::uint64_t h) {
    std::uint32_t candidate = 0;
    GPUFS_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (matches(s.entries[i], h)) candidate = slot_of(s.entries[i]) + 1;
    }
    return candidate;
  }
  // In the order in which place() fills cells.
  GPUFS_HD std::uint32_t guess_behind(std::uint64_t h) const {
    std::uint32_t candidate = 0;
    GPUFS_NO_UNROLL
    for (std::uint32_t k = 1; k < 4 && candidate == 0; ++k)
      candidate = guess_of(load_sector(h, k), h);
    return candidate;
  }

  // As find_and_pin(), and waits while the slot is loading. Called by one thread that owns no
  // unloaded slot. So waits form no cycle, and each one ends when the load does: a loader waits for
  // no other load. Inline for callers that miss often, because a call makes a GPU store the
  // registers that the called function may use.
  GPUFS_HD lookup_result lookup_inline(const slot_key& key) {
    const pinned_slot found = find_and_pin(key);
    if (!found.found) return {lookup_result::kind::absent, 0, 0, false};
    if (found.phase == slot_phase::resident)
      return {lookup_result::kind::resident, found.slot, 0, false};
    slot_header& header = slots_.header(found.slot);
    slot_phase phase = slot_phase::loading;
    for (std::uint32_t attempt = 0; phase == slot_phase::loading; ++attempt) {
      platform::pause(attempt);
      phase = slot_state::phase(header.state.load_for_wait());
    }
    header.state.end_wait();
    if (phase == slot_phase::resident) return {lookup_result::kind::resident, found.slot, 0, true};
    // The load failed. The pin keeps the slot from being claimed, so the error is still that
    // load's.
    const std::int32_t error = header.failure();
    slots_.unpin(found.slot);
    return {lookup_result::kind::failed, found.slot, error, true};
  }
  // The same, out of line.
  GPUFS_HD GPUFS_OUT_OF_LINE lookup_result lookup(const slot_key& key) {
    return lookup_inline(key);
  }

  enum class begun : std::uint32_t { yes, present, no_slot };
  struct begin_result {
    begun what;
    std::uint32_t slot;
  };

  // Makes a slot for an absent key: owned by the caller, loading, pinned and in the index.
  // `claim()` returns a free slot in state evicting, or none. It is called under the latch, and
  // must neither wait nor take a latch. So of many groups that miss one page together, only one
  // takes a slot.
  template <class Claim>
  [[nodiscard]] GPUFS_HD begin_result begin_load_with(const slot_key& key, const Claim& claim) {
    const std::uint64_t h = hash(key);
    const std::uint64_t home = h & mask_;
    GPUFS_SCHEDULE_POINT("index.insert");
    // Of many groups that miss one key together, the first gets the latch, and the others stop
    // waiting once the key is present. Without the latch that is a guess, but a caller that gets
    // `present` looks the key up again. Otherwise each group would hold the latch in turn
    // (docs/decisions/cache.md).
    for (std::uint32_t attempt = 0; !try_latch(home); ++attempt) {
      if (attempt != 0 && present(key, h)) return {begun::present, 0};
      pause_at_latch(attempt);
    }
    GPUFS_SCHEDULE_POINT("index.latched");
    begin_result result{begun::present, 0};
    if (!present(key, h)) {
      const slot_claim c = claim();
      result = {c.claimed ? begun::yes : begun::no_slot, c.slot};
      if (c.claimed) {
        slot_header& header = slots_.header(c.slot);
        header.set_key(key);
        // The slot becomes loading only here, where the load is certain. If it became loading
        // earlier and were then given back, a lookup with an old entry could wait for it, and take
        // an old error for the result.
        header.state.begin_load();
        place(h, c.slot);
      }
    }
    unlatch(home);
    return result;
  }

  // As begin_load_with(), for a slot that the caller has claimed (by eviction, which needs
  // latches). Returns false when another group was first; the slot is then free and no longer the
  // caller's.
  [[nodiscard]] GPUFS_HD bool begin_load(const slot_key& key, std::uint32_t slot) {
    if (begin_load_with(key, [slot] { return slot_claim{slot, true}; }).what == begun::yes)
      return true;
    slots_.header(slot).state.release();
    return false;
  }

  // Ends a load with an error. Waiters get the error; later lookups find nothing.
  GPUFS_HD GPUFS_OUT_OF_LINE void fail_load(const slot_key& key, std::uint32_t slot,
                                            std::int32_t error) {
    slot_header& header = slots_.header(slot);
    header.set_failure(error);
    header.state.fail_load();
    remove(key, slot);
    header.state.release();
    slots_.unpin(slot);
  }

  // Removes the entry of a slot that the caller owns in state evicting. Called by one thread.
  GPUFS_HD GPUFS_OUT_OF_LINE void remove(const slot_key& key, std::uint32_t slot) {
    const std::uint64_t h = hash(key);
    const std::uint64_t home = h & mask_;
    const std::uint64_t entry = make_entry(h, slot);
    latch(home);
    bool removed = false;
    std::uint64_t b = home;
    for (std::uint64_t probes = 0; probes <= mask_ && !removed; ++probes, b = (b + 1) & mask_) {
      GPUFS_NO_UNROLL
      for (std::uint32_t i = 0; i < index_bucket::entry_count && !removed; ++i) {
        if (buckets_[b].entries[i].load_relaxed() != entry) continue;
        buckets_[b].entries[i].store_relaxed(0);
        removed = true;
      }
      if (removed) break;
    }
    GPUFS_ASSERT(removed);
    // Release: a lookup that reads the lowered count, and stops there, sees that the entry past it
    // is gone.
    GPUFS_NO_UNROLL
    for (std::uint64_t p = home; p != b; p = (p + 1) & mask_)
      (void)buckets_[p].passed.fetch_add_release(~0u);
    unlatch(home);
  }

 private:
  // The loop over matching entries is not unrolled: sixteen copies of its body, of which one runs,
  // would evict other code from the instruction cache. The entries are in registers, so no index
  // reaches them; hence the bit mask.
  struct entries_of_bucket {
    std::uint64_t values[index_bucket::entry_count];
    // A bit for each matching entry.
    GPUFS_HD std::uint32_t that_match(std::uint64_t h) const {
      std::uint32_t bits = 0;
      GPUFS_UNROLL
      for (std::uint32_t i = 0; i < index_bucket::entry_count; ++i)
        bits |= (matches(values[i], h) ? 1u : 0u) << i;
      return bits;
    }
    // The slot of the entry with the lowest bit.
    GPUFS_HD std::uint32_t slot_of_first(std::uint32_t bits) const {
      std::uint32_t slot = 0;
      GPUFS_UNROLL
      for (std::uint32_t i = index_bucket::entry_count; i-- > 0;) {
        if ((bits >> i & 1) != 0) slot = slot_of(values[i]);
      }
      return slot;
    }
  };
  // All loads at once, so that their latencies overlap. Relaxed: the slot's state word orders what
  // the entry leads to.
  GPUFS_HD entries_of_bucket load_entries(std::uint64_t b) const {
    entries_of_bucket e;
    GPUFS_UNROLL
    for (std::uint32_t i = 0; i < index_bucket::entry_count; ++i)
      e.values[i] = buckets_[b].entries[i].load_relaxed();
    return e;
  }

  // First cell of the sector where an entry goes if it fits, and where guess() looks first. Uses
  // other hash bits than the bucket number.
  GPUFS_HD static std::uint32_t preferred_cell(std::uint64_t h) {
    return static_cast<std::uint32_t>(h >> 32) % 4 * 4;
  }
  GPUFS_HD static std::uint64_t make_entry(std::uint64_t h, std::uint32_t slot) {
    return (h & 0xffffffff00000000ull) | (slot + 1u);
  }
  GPUFS_HD static std::uint32_t slot_of(std::uint64_t entry) {
    return static_cast<std::uint32_t>(entry) - 1u;
  }
  GPUFS_HD static bool matches(std::uint64_t entry, std::uint64_t h) {
    return static_cast<std::uint32_t>(entry) != 0 && (entry >> 32) == (h >> 32);
  }

  // Called under the home latch: no entry of this home comes or goes, and a slot found loading or
  // resident stays in the index until its evictor gets the latch. Without the latch the result is a
  // guess.
  GPUFS_HD bool present(const slot_key& key, std::uint64_t h) {
    std::uint64_t b = h & mask_;
    for (std::uint64_t probes = 0; probes <= mask_; ++probes, b = (b + 1) & mask_) {
      const entries_of_bucket entries = load_entries(b);
      for (std::uint32_t left = entries.that_match(h); left != 0; left &= left - 1) {
        slot_header& header = slots_.header(entries.slot_of_first(left));
        const slot_phase phase = slot_state::phase(header.state.load());
        if ((phase == slot_phase::loading || phase == slot_phase::resident) && header.key() == key)
          return true;
      }
      if (buckets_[b].passed.load_relaxed() == 0) return false;
    }
    return false;
  }

  // Called under the home latch.
  GPUFS_HD void place(std::uint64_t h, std::uint32_t slot) {
    const std::uint64_t entry = make_entry(h, slot);
    for (;;) {
      std::uint64_t b = h & mask_;
      for (std::uint64_t probes = 0; probes <= mask_; ++probes, b = (b + 1) & mask_) {
        std::uint32_t i = preferred_cell(h);
        GPUFS_NO_UNROLL
        for (std::uint32_t n = 0; n < index_bucket::entry_count; ++n, ++i) {
          if (i == index_bucket::entry_count) i = 0;
          atomic_word<std::uint64_t>& cell = buckets_[b].entries[i];
          if (cell.load_relaxed() != 0) continue;
          std::uint64_t empty = 0;
          // Release outside the home bucket: orders the raised counts before the entry. So a lookup
          // that stops early has read counts from before the entry.
          const bool placed = b == (h & mask_) ? cell.compare_exchange_relaxed(empty, entry)
                                               : cell.compare_exchange_release(empty, entry);
          if (placed) return;
        }
        // Raised before the entry appears (invariant 3).
        buckets_[b].passed.add_relaxed(1);
      }
      // There always was an empty cell (invariant of the constructor), but writers of other homes
      // took each one first. Take the counts back, because remove() lowers each once, and start
      // again.
      GPUFS_NO_UNROLL
      for (std::uint64_t p = 0; p <= mask_; ++p) buckets_[p].passed.add_relaxed(~0u);
    }
  }

  // Acquire: pairs with the release in unlatch().
  [[nodiscard]] GPUFS_HD bool try_latch(std::uint64_t b) {
    std::uint32_t open = 0;
    return buckets_[b].latch.load_relaxed() == 0 &&
           buckets_[b].latch.compare_exchange_acquire(open, 1);
  }
  GPUFS_HD static void pause_at_latch(std::uint32_t attempt) {
    platform::pause(attempt < 16 ? 0 : attempt);
  }
  GPUFS_HD void latch(std::uint64_t b) {
    for (std::uint32_t attempt = 0; !try_latch(b); ++attempt) pause_at_latch(attempt);
    GPUFS_SCHEDULE_POINT("index.latched");
  }
  // Release: pairs with the acquire in try_latch(). The next holder sees this holder's entries.
  GPUFS_HD void unlatch(std::uint64_t b) { buckets_[b].latch.store_release(0); }

  index_bucket* buckets_;
  std::uint64_t mask_;
  Slots slots_;
};

}  // namespace gpufs

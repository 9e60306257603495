// Rings: each shares out one run of slots, oldest first. A ring is used by the groups of a few multiprocessors, so
// that allocation does not meet at one word; when its slots are all in use, the others help out.
//
// `next` walks over the slots for allocation; a slot found free, or resident and unpinned, is claimed and becomes the
// caller's. Because slots are filled in the order in which `next` passes them, the walk meets the oldest first (FIFO).
// `reclaim` walks ahead of `next` and evicts, so that an allocation usually finds a free slot, and so that what takes
// long about an eviction happens before somebody waits for it.
#pragma once

#include "gpufs/cache/hash_index.cuh"

namespace gpufs {

struct alignas(128) slot_ring {
  atomic_word<std::uint64_t> next;     // free-running; position modulo count
  atomic_word<std::uint64_t> reclaim;  // free-running; only a hint of how far reclaiming has come
  std::uint32_t first;                 // Invariant: fixed at mount, count > 0
  std::uint32_t count;

  GPUFS_HD std::uint32_t slot_at(std::uint64_t position) const {
    return first + static_cast<std::uint32_t>(position % count);
  }
};
static_assert(sizeof(slot_ring) == 128, "rings of different multiprocessors share no line");

// `Table` gives `header(slot)` and `bool claim_resident(slot)`, which takes a resident unpinned slot out of the index
// (or says no).
template <class Table>
class ring_set {
 public:
  // How many slots ahead of `next` are kept free, for a ring of `count` slots: one for each group that may want one at
  // the same moment, but not a large part of a small cache.
  GPUFS_HD static std::uint32_t lead(std::uint32_t count) { return count / 8 < 256 ? count / 8 : 256; }

  GPUFS_HD ring_set(slot_ring* rings, std::uint32_t ring_count, Table table)
      : rings_(rings), ring_count_(ring_count), table_(table) {}

  // One round: at most `visits_max` slots, own ring first. The slot comes back in state evicting, the caller's.
  // Called by one thread; waits only for index latches.
  GPUFS_HD GPUFS_OUT_OF_LINE slot_claim try_claim(std::uint32_t round, std::uint32_t visits_max = 131072) {
    const std::uint32_t own = platform::processor() % ring_count_;
    std::uint32_t visits = 0;
    for (std::uint32_t k = 0; k < ring_count_ && visits < visits_max; ++k) {
      // Each other ring once. Later rounds start elsewhere, so that rounds together visit every ring although each is bounded.
      const std::uint32_t r =
          k == 0 ? own
                 : static_cast<std::uint32_t>((own + 1 + (k - 1 + std::uint64_t{round} * 7919u) % (ring_count_ - 1)) %
                                              ring_count_);
      slot_ring& ring = rings_[r];
      // At most half of the round in the own ring, which may be as large as all visits.
      const std::uint32_t here = k == 0 && ring_count_ > 1 ? visits_max / 2 : visits_max;
      for (std::uint32_t v = 0; v < ring.count && visits < here; ++v, ++visits) {
        const std::uint32_t slot = ring.slot_at(ring.next.fetch_add_relaxed(1));
        if (try_claim_slot(slot)) return {slot, true};
      }
    }
    return {0, false};
  }

  // A free slot from the own ring, if reclaiming has kept one ahead. Neither waits nor latches. Called by one thread.
  GPUFS_HD slot_claim try_claim_free() {
    slot_ring& ring = rings_[platform::processor() % ring_count_];
    for (std::uint32_t v = 0; v < 8 && v < ring.count; ++v) {
      std::uint64_t position = ring.next.load_relaxed();
      const std::uint32_t slot = ring.slot_at(position);
      slot_header& header = table_.header(slot);
      const std::uint32_t word = header.state.peek();
      if (word == slot_state::unpinned(slot_phase::resident)) break;  // none was kept free: the caller has to evict
      // Free, or in somebody's use: passed over.
      if (!ring.next.compare_exchange_relaxed(position, position + 1)) continue;
      if (word == slot_state::unpinned(slot_phase::free) && header.state.claim(slot_phase::free)) return {slot, true};
    }
    return {0, false};
  }

  // Evicts up to two slots ahead of `next`, when fewer than lead() are free. Called by one thread that holds nothing
  // unloaded. Returns the number evicted.
  GPUFS_HD GPUFS_OUT_OF_LINE std::uint32_t reclaim_ahead() {
    slot_ring& ring = rings_[platform::processor() % ring_count_];
    std::uint32_t evicted = 0;
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t next = ring.next.load_relaxed();
      std::uint64_t position = ring.reclaim.load_relaxed();
      const std::uint64_t from = position < next ? next : position;
      if (from >= next + lead(ring.count)) break;
      // Two groups may take the same position when this fails; then one of them finds nothing to evict.
      if (!ring.reclaim.compare_exchange_relaxed(position, from + 1)) continue;
      const std::uint32_t slot = ring.slot_at(from);
      slot_header& header = table_.header(slot);
      if (header.state.peek() == slot_state::unpinned(slot_phase::resident) && table_.claim_resident(slot)) {
        header.state.release();
        ++evicted;
      }
    }
    return evicted;
  }

 private:
  GPUFS_HD bool try_claim_slot(std::uint32_t slot) {
    slot_header& header = table_.header(slot);
    const std::uint32_t word = header.state.peek();
    if (word == slot_state::unpinned(slot_phase::free)) return header.state.claim(slot_phase::free);
    return word == slot_state::unpinned(slot_phase::resident) && table_.claim_resident(slot);
  }

  slot_ring* rings_;
  std::uint32_t ring_count_;
  Table table_;
};

// Makes a slot for an absent key (hash_index::begin_load_with): from the free ones, else by eviction, which needs latches
// and therefore comes first. `no_slot` when none was to be had in this round; a round visits each open-file record, as
// there are no more of them than a round's visits. Called by one thread.
// Only the first round looks for a free slot under the latch: groups that go round for want of a slot would take the
// latch from those who evict, and who alone can give them one.
template <class Table>
GPUFS_HD GPUFS_OUT_OF_LINE typename hash_index<Table>::begin_result begin_load(hash_index<Table> index,
                                                                               ring_set<Table> rings,
                                                                               const slot_key& key,
                                                                               std::uint32_t round) {
  using begun = typename hash_index<Table>::begun;
  if (round == 0) {
    const auto r = index.begin_load_with(key, [&] { return rings.try_claim_free(); });
    if (r.what != begun::no_slot) return r;
  }
  const slot_claim claim = rings.try_claim(round);
  if (!claim.claimed) return {begun::no_slot, 0};
  return {index.begin_load(key, claim.slot) ? begun::yes : begun::present, claim.slot};
}

}  // namespace gpufs

// Rings: each shares out one run of slots, oldest first. A ring is used by the groups of a few multiprocessors, so
// that allocation does not meet at one word; when its slots are all in use, the others help out.
//
// `next` walks over the slots for allocation; a slot found free, or resident and unpinned, is claimed and becomes the
// caller's. Because slots are filled in the order in which `next` passes them, the walk meets the oldest first (FIFO).
// `reclaim` walks ahead of `next` and evicts, so that an allocation usually finds a free slot, and so that what takes
// long about an eviction happens before somebody waits for it.
#pragma once

#include "gpufs/cache/slot_state.cuh"

namespace gpufs {

struct alignas(128) slot_ring {
  atomic_word<std::uint64_t> next;     // free-running; position modulo count
  atomic_word<std::uint64_t> reclaim;  // free-running; only a hint of how far reclaiming has come
  std::uint32_t first;                 // Invariant: fixed at mount, count > 0
  std::uint32_t count;

  GPUFS_HD std::uint32_t slot_at(std::uint64_t position) const { return first + static_cast<std::uint32_t>(position % count); }
};
static_assert(sizeof(slot_ring) == 128, "rings of different multiprocessors share no line");

struct slot_claim {
  std::uint32_t slot;
  bool claimed;
};

// `Table` gives `header(slot)` and `bool claim_resident(slot)`, which takes a resident unpinned slot out of the index
// (or says no).
template <class Table>
class ring_set {
 public:
  // How many slots ahead of `next` are kept free, for a ring of `count` slots.
  GPUFS_HD static std::uint32_t lead(std::uint32_t count) { return count / 8 < 32 ? count / 8 : 32; }

  GPUFS_HD ring_set(slot_ring* rings, std::uint32_t ring_count, Table table) : rings_(rings), ring_count_(ring_count), table_(table) {}

  // One round: at most `visits_max` slots, own ring first. The slot comes back in state evicting, the caller's.
  // Called by one thread; waits only for index latches.
  GPUFS_HD GPUFS_OUT_OF_LINE slot_claim try_claim(std::uint32_t round, std::uint32_t visits_max = 65536) {
    const std::uint32_t own = platform::processor() % ring_count_;
    std::uint32_t visits = 0;
    for (std::uint32_t k = 0; k < ring_count_ && visits < visits_max; ++k) {
      // Later rounds start elsewhere, so that rounds together visit every ring although each is bounded.
      const std::uint32_t r = k == 0 ? own : static_cast<std::uint32_t>((own + k + std::uint64_t{round} * 7919u) % ring_count_);
      slot_ring& ring = rings_[r];
      for (std::uint32_t v = 0; v < ring.count && visits < visits_max; ++v, ++visits) {
        const std::uint32_t slot = ring.slot_at(ring.next.fetch_add_relaxed(1));
        if (try_claim_slot(slot)) return {slot, true};
      }
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
      if (position >= next + lead(ring.count)) break;
      // Two groups may take the same position when this fails; then one of them finds nothing to evict.
      const std::uint64_t from = position < next ? next : position;
      if (!ring.reclaim.compare_exchange(position, from + 1)) continue;
      const std::uint32_t slot = ring.slot_at(from);
      slot_header& header = table_.header(slot);
      const std::uint32_t word = header.state.peek();
      if (slot_state::phase(word) == slot_phase::resident && slot_state::pins(word) == 0 && table_.claim_resident(slot)) {
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
    if (slot_state::pins(word) != 0) return false;
    if (slot_state::phase(word) == slot_phase::free) return header.state.claim(slot_phase::free);
    return slot_state::phase(word) == slot_phase::resident && table_.claim_resident(slot);
  }

  slot_ring* rings_;
  std::uint32_t ring_count_;
  Table table_;
};

}  // namespace gpufs

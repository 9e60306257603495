// Rings: each ring allocates one range of slots, oldest first. A key's hash selects its ring. So
// the rings fill evenly, and allocations do not all meet at one word. When all slots of a ring are
// in use, allocation goes on in the other rings.
//
//  * `next` walks over the slots for allocation. The caller claims a slot that is free, or resident
//    and unpinned. Slots are filled in the order in which `next` passes them, so the walk meets the
//    oldest first (FIFO).
//  * `reclaim` walks ahead of `next` and evicts. So an allocation usually finds a free slot, and
//    the slow part of an eviction happens before a group waits for it.
//
// A failed compare-and-swap on these words is not retried: retries of many groups on one word are
// slow (docs/decisions/cache.md).
#pragma once

#include "gpufs/cache/hash_index.cuh"

namespace gpufs {

struct alignas(128) slot_ring {
  // Free-running; slot_at() leads to the slot of a position.
  atomic_word<std::uint64_t> next;
  // Free-running; a hint of how far reclaiming has come.
  atomic_word<std::uint64_t> reclaim;
  // Invariant: fixed at mount, count > 0.
  std::uint32_t first;
  std::uint32_t count;
  // For frames (cache/write_back.cuh):
  atomic_word<std::uint64_t> clean;  // Free-running; how far write-back has come.
  atomic_word<std::uint32_t> dirty;  // Dirty pages in this ring.
  // Ranges of slots that `next` has passed and that were given back unused: first slot in the upper
  // half, count in the lower half; 0: none. A hint: the slot's header says whether it is free.
  static constexpr std::uint32_t returned_max = 8;
  atomic_word<std::uint64_t> returned[returned_max];

  GPUFS_HD std::uint32_t slot_at(std::uint64_t position) const {
    // Of the lower half, because a 64-bit division takes a GPU about a hundred instructions. So the
    // order of the slots jumps once in 2^32 positions.
    return first + static_cast<std::uint32_t>(position) % count;
  }
};
static_assert(sizeof(slot_ring) == 128, "rings of different multiprocessors share no line");

// Slots with consecutive numbers.
struct slot_range {
  std::uint32_t first;
  std::uint32_t count;
};

// `Table` provides `header(slot)` and `bool claim_resident(slot)`. The latter claims a resident
// unpinned slot and removes it from the index, or returns false.
template <class Table>
class ring_set {
 public:
  // How many slots ahead of `next` are kept free in a ring of `count` slots: enough for all groups
  // that may want one at once, but not a large part of a small cache.
  GPUFS_HD static std::uint32_t lead(std::uint32_t count) {
    return count / 8 < 256 ? count / 8 : 256;
  }

  GPUFS_HD ring_set(slot_ring* rings, std::uint32_t ring_count, Table table)
      : rings_(rings), ring_count_(ring_count), table_(table) {}

  // The ring of a key.
  GPUFS_HD std::uint32_t ring_of(const slot_key& key) const {
    // Uses other hash bits than the bucket number.
    return static_cast<std::uint32_t>(
        (std::uint64_t{static_cast<std::uint32_t>(hash(key) >> 24)} * ring_count_) >> 32);
  }

  // One round: visits at most `visits_max` slots, ring `own` first. The claimed slot is the
  // caller's, in state evicting. Called by one thread. Waits only for index latches.
  GPUFS_HD slot_claim try_claim(std::uint32_t own, std::uint32_t round,
                                std::uint32_t visits_max = 131072) {
    std::uint32_t visits = 0;
    for (std::uint32_t k = 0; k < ring_count_ && visits < visits_max; ++k) {
      // Each other ring once. Later rounds start elsewhere, so that the bounded rounds together
      // visit every ring.
      const std::uint32_t r =
          k == 0
              ? own
              : (own + 1 + (k - 1 + round % ring_count_ * 7919u) % (ring_count_ - 1)) % ring_count_;
      slot_ring& ring = rings_[r];
      // The own ring may have as many slots as a round visits, so it gets at most half of them.
      const std::uint32_t here = k == 0 && ring_count_ > 1 ? visits_max / 2 : visits_max;
      for (std::uint32_t v = 0; v < ring.count && visits < here; ++v, ++visits) {
        const std::uint32_t slot = ring.slot_at(ring.next.fetch_add_relaxed(1));
        if (claim_slot(slot)) return {slot, true};
      }
    }
    return {0, false};
  }

  // Claims a free slot of the ring, if reclaiming has kept one ahead. Otherwise `victim` names a
  // slot that the caller should claim outside of any latch. Called by one thread. Does not wait,
  // and takes no latch.
  GPUFS_HD slot_claim try_claim_free(std::uint32_t own, slot_claim& victim) {
    slot_ring& ring = rings_[own];
    victim = {0, false};
    for (std::uint32_t v = 0; v < 4 && v < ring.count; ++v) {
      const std::uint32_t slot = ring.slot_at(ring.next.fetch_add_relaxed(1));
      slot_header& header = table_.header(slot);
      const std::uint32_t word = header.state.peek();
      if (word == slot_state::unpinned(slot_phase::free) && header.state.claim(slot_phase::free))
        return {slot, true};
      if (word == slot_state::unpinned(slot_phase::resident)) {
        victim = {slot, true};
        break;
      }
    }
    return {0, false};
  }

  // Claims the victim of try_claim_free(), by eviction if needed.
  [[nodiscard]] GPUFS_HD bool claim_victim(const slot_claim& victim) {
    return victim.claimed && claim_slot(victim.slot);
  }

  // Finds `least` to `most` consecutive slots of a ring; count 0: none. First it tries slots that
  // were given back and look free, then the slots at the ring's front that look free or evictable.
  // The slots are not claimed yet, but the ring rarely offers them to another group. Collective.
  // Does not wait.
  template <class Group>
  GPUFS_HD slot_range take_consecutive(const Group& g, std::uint32_t own, std::uint32_t most,
                                       std::uint32_t least) {
    slot_range back{0, 0};
    if (g.is_leader()) back = take_returned(own, most, least);
    back = g.broadcast(back);
    if (back.count != 0) {
      back.count = leading(g, back, [](std::uint32_t word) {
        return word == slot_state::unpinned(slot_phase::free);
      });
      if (back.count >= least) return back;
    }
    slot_ring& ring = rings_[own];
    struct {
      std::uint64_t next;
    } at{ring.next.load_relaxed()};
    at = g.broadcast(at);
    const std::uint32_t first = ring.slot_at(at.next);
    const std::uint32_t room = ring.first + ring.count - first;
    const std::uint32_t count = most < room ? most : room;
    const std::uint32_t fit = leading(g, {first, count}, [](std::uint32_t word) {
      return word == slot_state::unpinned(slot_phase::free) ||
             word == slot_state::unpinned(slot_phase::resident);
    });
    if (fit < least) {
      // Move `next` past the obstacle (the ring's end, a slot in use). Otherwise every later call
      // would meet it again.
      const std::uint32_t past = fit == count ? count : fit + 1;
      std::uint64_t expected = at.next;
      if (g.is_leader()) (void)ring.next.compare_exchange_relaxed(expected, at.next + past);
      return {0, 0};
    }
    // Not retried: a failure means that other groups allocate here, so this is no place for a
    // range.
    std::uint32_t taken = 0;
    if (g.is_leader()) taken = ring.next.compare_exchange_relaxed(at.next, at.next + fit) ? 1 : 0;
    return g.broadcast(taken) != 0 ? slot_range{first, fit} : slot_range{0, 0};
  }

  // Gives back slots of take_consecutive() that the caller does not want; the ring offers them
  // again. Called by one thread. When many groups want the same range, all but one give their slots
  // back. Otherwise those slots would stay unused until `next` has gone round the ring, and has
  // evicted all other slots.
  GPUFS_HD void give_back(std::uint32_t own, std::uint32_t first, std::uint32_t count) {
    slot_ring& ring = rings_[own];
    std::uint64_t next = ring.next.load_relaxed();
    const bool last = next >= count && ring.slot_at(next - count) == first;
    if (last && ring.next.compare_exchange_relaxed(next, next - count)) return;
    // Replaces the shortest range: ranges that are too short for any caller would block the list.
    // Retried, because other groups change the list too.
    for (std::uint32_t attempt = 0; attempt < slot_ring::returned_max; ++attempt) {
      atomic_word<std::uint64_t>* place = ring.returned;
      std::uint64_t shortest = place->load_relaxed();
      for (atomic_word<std::uint64_t>& other : ring.returned) {
        const std::uint64_t word = other.load_relaxed();
        if (static_cast<std::uint32_t>(word) < static_cast<std::uint32_t>(shortest))
          shortest = word, place = &other;
      }
      if (static_cast<std::uint32_t>(shortest) >= count) return;
      if (place->compare_exchange_relaxed(shortest, std::uint64_t{first} << 32 | count)) return;
    }
  }

  // Claims a slot that is free, or resident and unpinned; it is then the caller's, in state
  // evicting. Called by one thread.
  [[nodiscard]] GPUFS_HD bool claim_slot(std::uint32_t slot) {
    slot_header& header = table_.header(slot);
    const std::uint32_t word = header.state.peek();
    if (word == slot_state::unpinned(slot_phase::free)) return header.state.claim(slot_phase::free);
    return word == slot_state::unpinned(slot_phase::resident) && table_.claim_resident(slot);
  }

  // Evicts some slots of a ring ahead of `next`, if fewer than lead() are free: one per member, or
  // two by a single thread. Returns how many the calling member evicted. Collective; the group
  // holds no unloaded slot.
  template <class Group>
  GPUFS_HD std::uint32_t reclaim_ahead(const Group& g, std::uint32_t own) {
    positions r{};
    if (g.is_leader()) r = take_positions(own, g.size() == 1 ? 2 : g.size());
    r = g.broadcast(r);
    std::uint32_t evicted = 0;
    for (std::uint32_t i = g.rank(); i < r.count; i += g.size()) {
      const std::uint32_t slot = rings_[own].slot_at(r.from + i);
      slot_header& header = table_.header(slot);
      if (header.state.peek() == slot_state::unpinned(slot_phase::resident) &&
          table_.claim_resident(slot)) {
        header.state.release();
        ++evicted;
      }
    }
    return evicted;
  }

 private:
  // How many slots of the range come before the first whose state does not `fit`. Collective.
  template <class Group, class Fit>
  GPUFS_HD std::uint32_t leading(const Group& g, const slot_range& range, const Fit& fit) const {
    std::uint32_t count = range.count;
    for (std::uint32_t i = g.rank(); i < range.count && count == range.count; i += g.size()) {
      if (!fit(table_.header(range.first + i).state.peek())) count = i;
    }
    return static_cast<std::uint32_t>(g.least(count));
  }

  // Takes up to `most` slots of the longest range that was given back; none if that range is
  // shorter than `least`. Called by one thread.
  GPUFS_HD slot_range take_returned(std::uint32_t own, std::uint32_t most, std::uint32_t least) {
    atomic_word<std::uint64_t>* place = nullptr;
    std::uint64_t longest = 0;
    for (atomic_word<std::uint64_t>& other : rings_[own].returned) {
      const std::uint64_t word = other.load_relaxed();
      if (static_cast<std::uint32_t>(word) > static_cast<std::uint32_t>(longest))
        longest = word, place = &other;
    }
    const auto first = static_cast<std::uint32_t>(longest >> 32),
               count = static_cast<std::uint32_t>(longest);
    if (place == nullptr || count < least || !place->compare_exchange_relaxed(longest, 0))
      return {0, 0};
    if (count <= most) return {first, count};
    give_back(own, first + most, count - most);
    return {first, most};
  }

  // Positions that the caller reclaims.
  struct positions {
    std::uint64_t from;
    std::uint64_t count;
  };

  // Called by one thread. Takes fewer than `wanted` positions only if the ring's lead is smaller:
  // one eviction costs a group about as much as one per member.
  GPUFS_HD positions take_positions(std::uint32_t own, std::uint32_t wanted) {
    slot_ring& ring = rings_[own];
    const std::uint32_t ahead = lead(ring.count);
    const std::uint64_t next = ring.next.load_relaxed();
    std::uint64_t position = ring.reclaim.load_relaxed();
    const std::uint64_t from = position < next ? next : position;
    if (from >= next + ahead) return {0, 0};
    const std::uint64_t missing = next + ahead - from;
    const std::uint64_t count = missing < wanted ? missing : wanted;
    if (count < wanted && count < (ahead + 1) / 2) return {0, 0};
    // Not retried: a failure means that another group reclaims.
    return ring.reclaim.compare_exchange_relaxed(position, from + count) ? positions{from, count}
                                                                         : positions{0, 0};
  }

  slot_ring* rings_;
  std::uint32_t ring_count_;
  Table table_;
};

// The part of begin_load() for a key without a free slot. `victim`: as from
// ring_set::try_claim_free(), not claimed yet.
template <class Table>
GPUFS_HD GPUFS_OUT_OF_LINE typename hash_index<Table>::begin_result begin_load_by_eviction(
    hash_index<Table> index, ring_set<Table> rings, const slot_key key, std::uint32_t round,
    slot_claim victim) {
  using begun = typename hash_index<Table>::begun;
  slot_claim claim{victim.slot, rings.claim_victim(victim)};
  if (!claim.claimed) claim = rings.try_claim(rings.ring_of(key), round);
  if (!claim.claimed) return {begun::no_slot, 0};
  return {index.begin_load(key, claim.slot) ? begun::yes : begun::present, claim.slot};
}

// Makes a slot for an absent key (hash_index::begin_load_with): a free slot, otherwise by eviction.
// Returns `no_slot` when this round found none. One round can visit all open-file records.
// Called by one thread.
//
// Eviction needs latches, so it comes before begin_load(). Only round 0 looks for a free slot under
// the latch: in later rounds, waiting groups would take the latch from the groups that evict, the
// only ones that can free a slot.
//
// Inline, because nearly every miss finds a free slot (hash_index::lookup_inline()).
template <class Table>
GPUFS_HD typename hash_index<Table>::begin_result begin_load(hash_index<Table> index,
                                                             ring_set<Table> rings,
                                                             const slot_key& key,
                                                             std::uint32_t round) {
  slot_claim victim{0, false};
  if (round == 0) {
    const std::uint32_t ring = rings.ring_of(key);
    const auto r = index.begin_load_with(key, [&] { return rings.try_claim_free(ring, victim); });
    if (r.what != hash_index<Table>::begun::no_slot) return r;
  }
  return begin_load_by_eviction(index, rings, key, round, victim);
}

}  // namespace gpufs

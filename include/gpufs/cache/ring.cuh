// Rings: each shares out one run of slots, oldest first. A key's hash says which ring it uses, so
// that no ring is full long before the others are, and that allocation does not meet at one word;
// when a ring's slots are all in use, the others help out.
//
// `next` walks over the slots for allocation; a slot found free, or resident and unpinned, is
// claimed and becomes the caller's. Because slots are filled in the order in which `next` passes
// them, the walk meets the oldest first (FIFO). `reclaim` walks ahead of `next` and evicts, so that
// an allocation usually finds a free slot, and so that what takes long about an eviction happens
// before somebody waits for it. Nobody tries twice to move one of them by compare-and-swap: many
// groups that repeat one on one word let no more than two million of them through in a second.
#pragma once

#include "gpufs/cache/hash_index.cuh"

namespace gpufs {

struct alignas(128) slot_ring {
  atomic_word<std::uint64_t> next;     // free-running; position modulo count
  atomic_word<std::uint64_t> reclaim;  // free-running; only a hint of how far reclaiming has come
  std::uint32_t first;                 // Invariant: fixed at mount, count > 0
  std::uint32_t count;
  // Of frames (cache/write_back.cuh):
  atomic_word<std::uint64_t> clean;  // free-running; how far writing back has come
  atomic_word<std::uint32_t> dirty;  // pages of this ring that are dirty
  // Runs of slots that `next` has passed and nobody used: the number of the first, and in the lower
  // half how many; 0 for none. Only a hint: whether a slot is free, its header says.
  static constexpr std::uint32_t returned_max = 8;
  atomic_word<std::uint64_t> returned[returned_max];

  GPUFS_HD std::uint32_t slot_at(std::uint64_t position) const {
    // A division of 64 bits takes a GPU some hundred instructions.
    const auto low = static_cast<std::uint32_t>(position);
    return first + (low == position ? low % count : static_cast<std::uint32_t>(position % count));
  }
};
static_assert(sizeof(slot_ring) == 128, "rings of different multiprocessors share no line");

// Slots with consecutive numbers.
struct slot_run {
  std::uint32_t first;
  std::uint32_t count;
};

// `Table` gives `header(slot)` and `bool claim_resident(slot)`, which takes a resident unpinned
// slot out of the index (or says no).
template <class Table>
class ring_set {
 public:
  // How many slots ahead of `next` are kept free, for a ring of `count` slots: one for each group
  // that may want one at the same moment, but not a large part of a small cache.
  GPUFS_HD static std::uint32_t lead(std::uint32_t count) {
    return count / 8 < 256 ? count / 8 : 256;
  }

  GPUFS_HD ring_set(slot_ring* rings, std::uint32_t ring_count, Table table)
      : rings_(rings), ring_count_(ring_count), table_(table) {}

  // The ring of a key.
  GPUFS_HD std::uint32_t ring_of(const slot_key& key) const {
    // Other bits of the hash than those that choose the bucket.
    return static_cast<std::uint32_t>(
        (std::uint64_t{static_cast<std::uint32_t>(hash(key) >> 24)} * ring_count_) >> 32);
  }

  // One round: at most `visits_max` slots, ring `own` first. The slot comes back in state evicting,
  // the caller's. Called by one thread; waits only for index latches.
  GPUFS_HD GPUFS_OUT_OF_LINE slot_claim try_claim(std::uint32_t own, std::uint32_t round,
                                                  std::uint32_t visits_max = 131072) {
    std::uint32_t visits = 0;
    for (std::uint32_t k = 0; k < ring_count_ && visits < visits_max; ++k) {
      // Each other ring once. Later rounds start elsewhere, so that rounds together visit every
      // ring although each is bounded.
      const std::uint32_t r =
          k == 0 ? own
                 : static_cast<std::uint32_t>(
                       (own + 1 + (k - 1 + std::uint64_t{round} * 7919u) % (ring_count_ - 1)) %
                       ring_count_);
      slot_ring& ring = rings_[r];
      // At most half of the round in the own ring, which may be as large as all visits.
      const std::uint32_t here = k == 0 && ring_count_ > 1 ? visits_max / 2 : visits_max;
      for (std::uint32_t v = 0; v < ring.count && visits < here; ++v, ++visits) {
        const std::uint32_t slot = ring.slot_at(ring.next.fetch_add_relaxed(1));
        if (claim_slot(slot)) return {slot, true};
      }
    }
    return {0, false};
  }

  // A free slot of a ring, if reclaiming has kept one ahead. Failing that, `victim` is a slot that
  // has become the caller's to evict, outside of any latch. Neither waits nor latches. Called by
  // one thread.
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

  // Takes the slot that try_claim_free() named, by eviction if it must be.
  [[nodiscard]] GPUFS_HD bool claim_victim(const slot_claim& victim) {
    return victim.claimed && claim_slot(victim.slot);
  }

  // Consecutive slots of a ring that looked free, some that were given back or those at its front,
  // which may also look as if they could be evicted: from `least` to `most` of them, or none.
  // Others are hardly ever offered them too, but they are not claimed yet. Collective; does not
  // wait.
  template <class Group>
  GPUFS_HD slot_run take_consecutive(const Group& g, std::uint32_t own, std::uint32_t most,
                                     std::uint32_t least) {
    slot_run back{0, 0};
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
      // Past what is in the way (the ring's end, a slot in use), or every later run would meet it
      // again.
      const std::uint32_t past = fit == count ? count : fit + 1;
      std::uint64_t expected = at.next;
      if (g.is_leader()) (void)ring.next.compare_exchange_relaxed(expected, at.next + past);
      return {0, 0};
    }
    // Not tried again when this fails: others are taking slots here, so this is no place for a run.
    std::uint32_t taken = 0;
    if (g.is_leader()) taken = ring.next.compare_exchange_relaxed(at.next, at.next + fit) ? 1 : 0;
    return g.broadcast(taken) != 0 ? slot_run{first, fit} : slot_run{0, 0};
  }

  // Slots that take_consecutive() gave, and that the caller does not want: the ring offers them
  // again. Many groups that ask for the same run give back all but one: slots that waited for the
  // next lap of `next` instead would be lost until it has evicted all others. By one thread.
  GPUFS_HD void give_back(std::uint32_t own, std::uint32_t first, std::uint32_t count) {
    slot_ring& ring = rings_[own];
    std::uint64_t next = ring.next.load_relaxed();
    const bool last = next >= count && ring.slot_at(next - count) == first;
    if (last && ring.next.compare_exchange_relaxed(next, next - count)) return;
    // In the place of the shortest, or pieces that are too short for any run would keep others out.
    // Others give back too.
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

  // Takes a slot that is free, or resident and unpinned; it is the caller's then, in state
  // evicting. By one thread.
  [[nodiscard]] GPUFS_HD bool claim_slot(std::uint32_t slot) {
    slot_header& header = table_.header(slot);
    const std::uint32_t word = header.state.peek();
    if (word == slot_state::unpinned(slot_phase::free)) return header.state.claim(slot_phase::free);
    return word == slot_state::unpinned(slot_phase::resident) && table_.claim_resident(slot);
  }

  // Evicts some slots of a ring ahead of `next`, when fewer than lead() are free: as many as the
  // group has members, one each, or two by a single thread. Collective, by a group that holds
  // nothing unloaded. Returns how many the calling member evicted.
  template <class Group>
  GPUFS_HD std::uint32_t reclaim_ahead(const Group& g, std::uint32_t own) {
    run r{};
    if (g.is_leader()) r = take_run(own, g.size() == 1 ? 2 : g.size());
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
  // How many slots of a run come before the first whose state does not `fit`. Collective.
  template <class Group, class Fit>
  GPUFS_HD std::uint32_t leading(const Group& g, const slot_run& run, const Fit& fit) const {
    std::uint32_t count = run.count;
    for (std::uint32_t i = g.rank(); i < run.count && count == run.count; i += g.size()) {
      if (!fit(table_.header(run.first + i).state.peek())) count = i;
    }
    return static_cast<std::uint32_t>(g.least(count));
  }

  // Of the longest run that was given back at most `most` slots; none if that is shorter than
  // `least`. By one thread.
  GPUFS_HD slot_run take_returned(std::uint32_t own, std::uint32_t most, std::uint32_t least) {
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

  // Positions that are the caller's to reclaim.
  struct run {
    std::uint64_t from;
    std::uint64_t count;
  };

  // By one thread. Less than `wanted` only where the lead of the ring is less: evictions cost a
  // group about as much for one slot as for one per member.
  GPUFS_HD GPUFS_OUT_OF_LINE run take_run(std::uint32_t own, std::uint32_t wanted) {
    slot_ring& ring = rings_[own];
    const std::uint32_t ahead = lead(ring.count);
    const std::uint64_t next = ring.next.load_relaxed();
    std::uint64_t position = ring.reclaim.load_relaxed();
    const std::uint64_t from = position < next ? next : position;
    if (from >= next + ahead) return {0, 0};
    const std::uint64_t missing = next + ahead - from;
    const std::uint64_t count = missing < wanted ? missing : wanted;
    if (count < wanted && count < (ahead + 1) / 2) return {0, 0};
    // Not tried again when this fails: whoever was faster reclaims.
    return ring.reclaim.compare_exchange_relaxed(position, from + count) ? run{from, count}
                                                                         : run{0, 0};
  }

  slot_ring* rings_;
  std::uint32_t ring_count_;
  Table table_;
};

// Makes a slot for an absent key (hash_index::begin_load_with): from the free ones, else by
// eviction, which needs latches and therefore comes first. `no_slot` when none was to be had in
// this round; a round visits each open-file record, as there are no more of them than a round's
// visits. Called by one thread. Only the first round looks for a free slot under the latch: groups
// that go round for want of a slot would take the latch from those who evict, and who alone can
// give them one.
template <class Table>
GPUFS_HD GPUFS_OUT_OF_LINE typename hash_index<Table>::begin_result begin_load(
    hash_index<Table> index, ring_set<Table> rings, const slot_key& key, std::uint32_t round) {
  using begun = typename hash_index<Table>::begun;
  const std::uint32_t ring = rings.ring_of(key);
  slot_claim claim{0, false};
  if (round == 0) {
    const auto r = index.begin_load_with(key, [&] { return rings.try_claim_free(ring, claim); });
    if (r.what != begun::no_slot) return r;
    claim.claimed = rings.claim_victim(claim);
  }
  if (!claim.claimed) claim = rings.try_claim(ring, round);
  if (!claim.claimed) return {begun::no_slot, 0};
  return {index.begin_load(key, claim.slot) ? begun::yes : begun::present, claim.slot};
}

}  // namespace gpufs

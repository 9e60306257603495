// Rings: who is evicted, and how long a search for a victim may take.
#include <gtest/gtest.h>

#include <set>

#include "gpufs/base/group.cuh"

#include "support/bare_cache.hpp"

namespace gpufs::testing {
namespace {

// Loads a page into the slot that the ring gives; the slot.
std::uint32_t load(const bare_cache& cache, std::uint64_t number, std::uint32_t ring = 0) {
  const slot_claim claim = cache.rings().try_claim(ring, 0);
  EXPECT_TRUE(claim.claimed);
  EXPECT_TRUE(cache.index().begin_load({1, number}, claim.slot));
  cache.frames().header(claim.slot).state.publish();
  cache.frames().unpin(claim.slot);
  return claim.slot;
}

bool is_resident(const bare_cache& cache, std::uint64_t number) {
  const pinned_slot found = cache.index().find_and_pin({1, number});
  if (found.found) cache.frames().unpin(found.slot);
  return found.found;
}

bare_cache_options one_ring(std::uint32_t frames) {
  bare_cache_options options;
  options.frames = frames;
  options.buckets = 64;
  return options;
}

TEST(ring, evicts_the_oldest_first) {
  const bare_cache cache(one_ring(8));
  for (std::uint64_t n = 0; n < 8; ++n) load(cache, n);
  for (std::uint64_t n = 8; n < 100; ++n) {
    load(cache, n);
    for (std::uint64_t old = 0; old <= n; ++old)
      ASSERT_EQ(is_resident(cache, old), old + 8 > n) << "page " << old << " after " << n;
  }
  cache.expect_at_rest();
}

TEST(ring, uses_free_slots_before_it_evicts) {
  const bare_cache cache(one_ring(8));
  std::set<std::uint32_t> slots;
  for (std::uint64_t n = 0; n < 8; ++n) slots.insert(load(cache, n));
  EXPECT_EQ(slots.size(), 8u);
  EXPECT_EQ(cache.count(counter::evictions), 0u);
}

TEST(ring, passes_over_pinned_slots) {
  const bare_cache cache(one_ring(8));
  for (std::uint64_t n = 0; n < 8; ++n) load(cache, n);
  const pinned_slot pinned = cache.index().find_and_pin({1, 0});
  ASSERT_TRUE(pinned.found);
  for (std::uint64_t n = 8; n < 40; ++n) EXPECT_NE(load(cache, n), pinned.slot);
  EXPECT_TRUE(is_resident(cache, 0));
  cache.frames().unpin(pinned.slot);
  for (std::uint64_t n = 40; n < 48; ++n) load(cache, n);
  EXPECT_FALSE(is_resident(cache, 0));
  cache.expect_at_rest();
}

// Only the lower half of a position counts, so the order of the slots jumps there.
TEST(ring, finds_each_slot_again_after_four_billion_positions) {
  const bare_cache cache(one_ring(7));
  slot_ring& ring = *cache.ref().at<slot_ring>(cache.ref().layout.rings);
  ring.next.store_relaxed((std::uint64_t{1} << 32) - 3);
  std::set<std::uint32_t> slots;
  for (std::uint64_t n = 0; n < 21; ++n) slots.insert(load(cache, n));
  EXPECT_EQ(slots.size(), 7u);
  for (std::uint64_t n = 14; n < 21; ++n) EXPECT_TRUE(is_resident(cache, n)) << n;
  cache.expect_at_rest();
}

// One round there may visit some slots twice and miss others.
TEST(ring, finds_the_one_slot_that_is_not_pinned_there_in_two_rounds) {
  for (std::uint32_t free_one = 0; free_one < 7; ++free_one) {
    const bare_cache cache(one_ring(7));
    for (std::uint64_t n = 0; n < 7; ++n) {
      load(cache, n);
      ASSERT_TRUE(cache.index().find_and_pin({1, n}).found);
    }
    cache.frames().unpin(free_one);
    cache.ref()
        .at<slot_ring>(cache.ref().layout.rings)
        ->next.store_relaxed((std::uint64_t{1} << 32) - 3);
    slot_claim claim = cache.rings().try_claim(0, 0);
    if (!claim.claimed) claim = cache.rings().try_claim(0, 1);
    ASSERT_TRUE(claim.claimed) << free_one;
    EXPECT_EQ(claim.slot, free_one);
  }
}

TEST(ring, finds_the_one_slot_that_is_not_pinned) {
  for (std::uint32_t rings = 1; rings <= 4; ++rings) {
    bare_cache_options options = one_ring(13);
    options.rings = rings;
    const bare_cache cache(options);
    for (std::uint64_t n = 0; n < 13; ++n) {
      load(cache, n);
      ASSERT_TRUE(cache.index().find_and_pin({1, n}).found);
    }
    for (std::uint32_t free_one = 0; free_one < 13; ++free_one) {
      cache.frames().unpin(free_one);
      const slot_claim claim = cache.rings().try_claim(0, free_one);
      ASSERT_TRUE(claim.claimed);
      EXPECT_EQ(claim.slot, free_one);
      ASSERT_TRUE(cache.index().begin_load({2, free_one}, claim.slot));  // with its pin
      cache.frames().header(claim.slot).state.publish();
    }
  }
}

TEST(ring, gives_up_after_as_many_visits_as_it_may_make) {
  bare_cache_options options = one_ring(100);
  options.rings = 3;
  const bare_cache cache(options);
  for (std::uint64_t n = 0; n < 100; ++n) {
    load(cache, n);
    ASSERT_TRUE(cache.index().find_and_pin({1, n}).found);
  }
  const auto visits = [&] {
    std::uint64_t n = 0;
    for (std::uint32_t r = 0; r < 3; ++r)
      n += cache.ref().at<slot_ring>(cache.ref().layout.rings)[r].next.load_relaxed();
    return n;
  };
  const std::uint64_t before = visits();
  EXPECT_FALSE(cache.rings().try_claim(0, 0, 10).claimed);
  EXPECT_EQ(visits(), before + 10);
  EXPECT_FALSE(cache.rings().try_claim(0, 0).claimed);
  EXPECT_EQ(visits(), before + 110) << "without a bound each slot is visited once";
}

TEST(ring, takes_from_other_rings_when_its_own_is_used_up) {
  bare_cache_options options = one_ring(12);
  options.rings = 3;
  const bare_cache cache(options);
  std::set<std::uint32_t> slots;
  for (std::uint64_t n = 0; n < 12; ++n) {
    const std::uint32_t slot = load(cache, n, 1);
    EXPECT_TRUE(cache.index().find_and_pin({1, n}).found);
    if (n < 4) {
      EXPECT_TRUE(slot >= 4 && slot < 8) << "its own ring first";
    }
    slots.insert(slot);
  }
  EXPECT_EQ(slots.size(), 12u);
}

TEST(ring, bounded_rounds_visit_every_ring_in_the_end) {
  bare_cache_options options = one_ring(40);
  options.rings = 8;
  const bare_cache cache(options);
  for (std::uint64_t n = 0; n < 40; ++n) {
    load(cache, n);
    ASSERT_TRUE(cache.index().find_and_pin({1, n}).found);
  }
  cache.frames().unpin(33);  // in the seventh ring
  bool claimed = false;
  for (std::uint32_t round = 0; round < 200 && !claimed; ++round)
    claimed = cache.rings().try_claim(0, round, 10).claimed;
  EXPECT_TRUE(claimed);
}

TEST(ring, gives_free_slots_without_evicting) {
  const bare_cache cache(one_ring(16));
  slot_claim victim{};
  for (std::uint64_t n = 0; n < 16; ++n) {
    const slot_claim claim = cache.rings().try_claim_free(0, victim);
    ASSERT_TRUE(claim.claimed);
    EXPECT_FALSE(victim.claimed);
    EXPECT_EQ(claim.slot, n);
    ASSERT_TRUE(cache.index().begin_load({1, n}, claim.slot));
    cache.frames().header(claim.slot).state.publish();
    cache.frames().unpin(claim.slot);
  }
  for (std::uint32_t n = 0; n < 16; ++n) {
    EXPECT_FALSE(cache.rings().try_claim_free(0, victim).claimed);
    EXPECT_TRUE(victim.claimed);
    EXPECT_EQ(victim.slot, n) << "the oldest, for the caller to evict";
  }
  for (std::uint64_t n = 0; n < 16; ++n) EXPECT_TRUE(is_resident(cache, n)) << "page " << n;
  // Reclaiming makes room for as many as it evicted.
  EXPECT_EQ(cache.rings().reclaim_ahead(this_thread(), 0), 2u);
  for (std::uint32_t slot = 0; slot < 2; ++slot) {
    const slot_claim claim = cache.rings().try_claim_free(0, victim);
    EXPECT_TRUE(claim.claimed && claim.slot == slot);
    cache.frames().header(claim.slot).state.release();
  }
  EXPECT_FALSE(cache.rings().try_claim_free(0, victim).claimed);
  EXPECT_TRUE(cache.rings().claim_victim(victim));
  EXPECT_FALSE(is_resident(cache, 2));
  cache.frames().header(victim.slot).state.release();
  EXPECT_FALSE(cache.rings().claim_victim({3, false}));
  EXPECT_TRUE(is_resident(cache, 3));
  cache.expect_at_rest();
}

TEST(ring, passes_over_slots_in_use_in_its_search_for_a_free_one) {
  const bare_cache cache(one_ring(16));
  for (std::uint64_t n = 0; n < 2; ++n) load(cache, n);
  const pinned_slot one = cache.index().find_and_pin({1, 0}),
                    two = cache.index().find_and_pin({1, 1});
  (void)cache.frames().header(2).state.pin();  // by a reader that followed an old entry
  cache.ref().at<slot_ring>(cache.ref().layout.rings)->next.store_relaxed(16);
  slot_claim victim{};
  const slot_claim claim = cache.rings().try_claim_free(0, victim);
  EXPECT_TRUE(claim.claimed);
  EXPECT_EQ(claim.slot, 3u);
  cache.frames().header(claim.slot).state.release();
  for (const std::uint32_t slot : {one.slot, two.slot, 2u}) cache.frames().unpin(slot);
  cache.expect_at_rest();
}

TEST(ring, reclaims_up_to_its_lead_and_no_further) {
  const bare_cache cache(one_ring(64));
  for (std::uint64_t n = 0; n < 64; ++n) load(cache, n);
  std::uint32_t evicted = 0;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t now = cache.rings().reclaim_ahead(this_thread(), 0);
    ASSERT_LE(now, 2u);
    evicted += now;
  }
  EXPECT_EQ(evicted, 8u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_EQ(is_resident(cache, n), n >= 8) << "page " << n;
  // The next allocations find them free.
  const std::uint64_t evictions = cache.count(counter::evictions);
  for (std::uint64_t n = 64; n < 72; ++n) load(cache, n);
  EXPECT_EQ(cache.count(counter::evictions), evictions);
  cache.expect_at_rest();
}

TEST(ring, does_not_reclaim_pinned_slots) {
  const bare_cache cache(one_ring(64));
  for (std::uint64_t n = 0; n < 64; ++n) load(cache, n);
  const pinned_slot pinned = cache.index().find_and_pin({1, 2});
  for (int i = 0; i < 100; ++i) (void)cache.rings().reclaim_ahead(this_thread(), 0);
  EXPECT_TRUE(is_resident(cache, 2));
  cache.frames().unpin(pinned.slot);
  cache.expect_at_rest();
}

TEST(ring, a_small_one_reclaims_nothing) {
  const bare_cache cache(one_ring(7));
  for (std::uint64_t n = 0; n < 7; ++n) load(cache, n);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(cache.rings().reclaim_ahead(this_thread(), 0), 0u);
}

TEST(ring, gives_consecutive_slots_as_far_as_they_can_be_had) {
  const bare_cache cache(one_ring(32));
  auto rings = cache.rings();
  slot_range range = rings.take_consecutive(this_thread(), 0, 10, 2);
  EXPECT_EQ(range.first, 0u);
  EXPECT_EQ(range.count, 10u);
  // They are not offered again, claimed or not.
  EXPECT_EQ(load(cache, 0), 10u);
  for (std::uint64_t n = 1; n < 22; ++n) load(cache, n);
  // From the front again; a pinned slot ends a range.
  for (std::uint64_t n = 22; n < 32; ++n) load(cache, n);
  EXPECT_EQ(rings.take_consecutive(this_thread(), 0, 4, 2).first, 10u);
  const pinned_slot pinned = cache.index().find_and_pin({1, 7});  // in slot 17
  ASSERT_TRUE(pinned.found);
  ASSERT_EQ(pinned.slot, 17u);
  range = rings.take_consecutive(this_thread(), 0, 10, 2);
  EXPECT_EQ(range.first, 14u);
  EXPECT_EQ(range.count, 3u);
  // Too few, and then none is taken; but the next search does not meet the same slot again.
  EXPECT_EQ(rings.take_consecutive(this_thread(), 0, 10, 2).count, 0u);
  cache.frames().unpin(pinned.slot);
  // The end of the ring ends a range as well.
  range = rings.take_consecutive(this_thread(), 0, 100, 2);
  EXPECT_EQ(range.first, 18u);
  EXPECT_EQ(range.count, 14u);
  EXPECT_EQ(rings.take_consecutive(this_thread(), 0, 1, 1).first, 0u);
}

TEST(ring, offers_again_what_was_given_back_behind_others) {
  const bare_cache cache(one_ring(32));
  auto rings = cache.rings();
  const auto take = [&](std::uint32_t most, std::uint32_t least) {
    return rings.take_consecutive(this_thread(), 0, most, least);
  };
  for (std::uint32_t n = 0; n < 3; ++n) ASSERT_EQ(take(8, 2).first, n * 8);
  rings.give_back(0, 0, 8);   // not the last that were taken
  rings.give_back(0, 10, 6);  // nor these
  // From the front of what came back; the rest stays.
  slot_range range = take(3, 2);
  EXPECT_EQ(range.first, 0u);
  EXPECT_EQ(range.count, 3u);
  // Not to who wants more.
  range = take(7, 7);
  EXPECT_EQ(range.first, 24u);
  EXPECT_EQ(range.count, 7u);
  range = take(8, 6);
  EXPECT_EQ(range.first, 10u);
  EXPECT_EQ(range.count, 6u);
  // What is not free any more is in no range: the search for a victim came by.
  for (std::uint64_t n = 0; n < 32; ++n) load(cache, n);
  range = take(5, 2);
  EXPECT_NE(range.first, 3u);
  cache.expect_at_rest();
}

TEST(ring, forgets_what_there_is_no_room_to_remember) {
  const bare_cache cache(one_ring(64));
  auto rings = cache.rings();
  for (std::uint32_t n = 0; n < 20; ++n)
    ASSERT_EQ(rings.take_consecutive(this_thread(), 0, 2, 2).first, n * 2);
  for (std::uint32_t n = 0; n < 19; ++n) rings.give_back(0, n * 2, 2);
  std::set<std::uint32_t> again;
  for (std::uint32_t n = 0; n < slot_ring::returned_max; ++n)
    again.insert(rings.take_consecutive(this_thread(), 0, 2, 2).first);
  EXPECT_EQ(again.size(), std::size_t{slot_ring::returned_max});
  EXPECT_LT(*again.rbegin(), 38u);
  EXPECT_EQ(rings.take_consecutive(this_thread(), 0, 2, 2).first, 40u);
}

TEST(ring, remembers_the_longest_of_what_was_given_back) {
  const bare_cache cache(one_ring(64));
  auto rings = cache.rings();
  for (std::uint32_t n = 0; n < 8; ++n)
    ASSERT_EQ(rings.take_consecutive(this_thread(), 0, 6, 2).first, n * 6);
  for (std::uint32_t n = 0; n < slot_ring::returned_max; ++n) rings.give_back(0, n * 5, 1);
  rings.give_back(0, 40, 4);
  const slot_range range = rings.take_consecutive(this_thread(), 0, 8, 2);
  EXPECT_EQ(range.first, 40u);
  EXPECT_EQ(range.count, 4u);
}

TEST(ring, keys_spread_over_all_rings) {
  bare_cache_options options = one_ring(64);
  options.rings = 7;
  const bare_cache cache(options);
  std::uint32_t counts[7] = {};
  for (std::uint64_t page = 0; page < 7000; ++page) {
    const std::uint32_t ring = cache.rings().ring_of({3, page});
    ASSERT_LT(ring, 7u);
    ++counts[ring];
  }
  for (const std::uint32_t n : counts) EXPECT_NEAR(n, 1000, 200);
}

}  // namespace
}  // namespace gpufs::testing

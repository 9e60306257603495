// The index by one thread: colliding keys, overflow into following buckets, and the `passed`
// counters that lead there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "support/bare_cache.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint32_t cells = index_bucket::entry_count;

// A key at home in a bucket (for up to 2^16 buckets), with a tag that all keys share: the worst
// case.
slot_key key_at_home(std::uint64_t home, std::uint64_t number) {
  return key_with_hash((std::uint64_t{77} << 32) | home, number);
}

void insert(const bare_cache& cache, const slot_key& key, std::uint32_t slot) {
  slot_header& header = cache.frames().header(slot);
  ASSERT_TRUE(header.state.claim(slot_phase::free));
  ASSERT_TRUE(cache.index().begin_load(key, slot));
  header.state.publish();
  cache.frames().unpin(slot);
}

void remove(const bare_cache& cache, std::uint32_t slot) {
  ASSERT_TRUE(cache.frames().claim_resident(slot));
  cache.frames().header(slot).state.release();
}

// The slot of a key, or nothing.
std::optional<std::uint32_t> where(const bare_cache& cache, const slot_key& key) {
  const lookup_result r = cache.index().lookup(key);
  if (r.what != lookup_result::kind::resident) return std::nullopt;
  cache.frames().unpin(r.slot);
  return r.slot;
}

std::uint64_t passed_in_all(const bare_cache& cache) {
  std::uint64_t n = 0;
  for (std::uint64_t b = 0; b < cache.ref().layout.bucket_count; ++b)
    n += cache.bucket(b).passed.load_relaxed();
  return n;
}

class index_of_buckets : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(buckets, index_of_buckets, ::testing::Values(1, 2, 4));

TEST_P(index_of_buckets, tells_keys_apart_whose_hashes_are_equal) {
  bare_cache_options options;
  options.buckets = GetParam();
  options.frames = static_cast<std::uint32_t>(cells * options.buckets - 1);
  const bare_cache cache(options);
  for (std::uint32_t slot = 0; slot < options.frames; ++slot)
    insert(cache, key_at_home(options.buckets - 1, slot), slot);
  for (std::uint32_t slot = 0; slot < options.frames; ++slot)
    EXPECT_EQ(where(cache, key_at_home(options.buckets - 1, slot)), slot);
  EXPECT_EQ(where(cache, key_at_home(options.buckets - 1, options.frames)), std::nullopt);
  cache.expect_at_rest();
}

TEST_P(index_of_buckets, counts_of_passed_buckets_return_to_zero) {
  bare_cache_options options;
  options.buckets = GetParam();
  options.frames = static_cast<std::uint32_t>(cells * options.buckets - 1);
  std::mt19937 random(17);
  for (int round = 0; round < 50; ++round) {
    const bare_cache cache(options);
    std::vector<std::uint32_t> slots(options.frames);
    for (std::uint32_t slot = 0; slot < options.frames; ++slot) {
      slots[slot] = slot;
      insert(cache, key_at_home(random() % options.buckets, slot), slot);
    }
    if (options.buckets == 2 && round == 0) cache.expect_at_rest();
    std::shuffle(slots.begin(), slots.end(), random);
    for (const std::uint32_t slot : slots) remove(cache, slot);
    ASSERT_EQ(passed_in_all(cache), 0u);
    cache.expect_at_rest();
  }
}

TEST_P(index_of_buckets, agrees_with_a_map) {
  bare_cache_options options;
  options.buckets = GetParam();
  options.frames = static_cast<std::uint32_t>(cells * options.buckets - 1);
  const bare_cache cache(options);
  std::map<std::uint64_t, std::uint32_t> naive;  // key number -> slot
  std::vector<std::uint32_t> unused(options.frames);
  for (std::uint32_t slot = 0; slot < options.frames; ++slot) unused[slot] = slot;
  std::mt19937 random(29);
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t number = random() % (options.frames + options.frames / 2);
    const slot_key key = key_at_home(number % 3 == 0 ? 0 : number % options.buckets, number);
    const auto known = naive.find(number);
    ASSERT_EQ(where(cache, key), known == naive.end() ? std::nullopt : std::optional(known->second))
        << "step " << step;
    if (known != naive.end()) {
      remove(cache, known->second);
      unused.push_back(known->second);
      naive.erase(known);
    } else if (!unused.empty()) {
      insert(cache, key, unused.back());
      naive[number] = unused.back();
      unused.pop_back();
    }
  }
  cache.expect_at_rest();
}

// Every sequence of so many insertions and removals of four keys around a bucket that has one cell
// left: all ways in which they can overflow, free a cell before one that passed it, and come back.
TEST(index, finds_every_key_after_each_short_sequence_of_changes) {
  constexpr int length = 6;
  constexpr std::array<std::uint64_t, 4> homes{0, 0, 0, 1};
  std::uint64_t sequences = 1;
  for (int i = 0; i < length; ++i) sequences *= homes.size();
  bare_cache_options options;
  options.buckets = 4;
  options.frames = static_cast<std::uint32_t>(2 * (cells - 1) + homes.size());
  const bare_cache cache(options);
  for (std::uint32_t slot = 4; slot < 4 + (cells - 1); ++slot)
    insert(cache, key_at_home(0, slot), slot);
  for (std::uint32_t slot = 4 + (cells - 1); slot < options.frames; ++slot)
    insert(cache, key_at_home(1, slot), slot);
  for (std::uint64_t sequence = 0; sequence < sequences; ++sequence) {
    std::array<bool, 4> there{};
    std::uint64_t rest = sequence;
    for (int i = 0; i < length; ++i, rest /= homes.size()) {
      const auto k = static_cast<std::uint32_t>(rest % homes.size());
      if (there[k]) remove(cache, k);
      else insert(cache, key_at_home(homes[k], k), k);
      there[k] = !there[k];
      for (std::uint32_t other = 0; other < homes.size(); ++other) {
        ASSERT_EQ(where(cache, key_at_home(homes[other], other)),
                  there[other] ? std::optional(other) : std::nullopt)
            << "sequence " << sequence << ", step " << i;
      }
    }
    for (std::uint32_t k = 0; k < homes.size(); ++k) {
      if (there[k]) remove(cache, k);
    }
    ASSERT_EQ(passed_in_all(cache), 0u) << "sequence " << sequence;
  }
  cache.expect_at_rest();
}

TEST(index, gives_a_slot_back_free_when_its_key_is_there_already) {
  const bare_cache cache;
  const slot_key key{3, 4};
  insert(cache, key, 0);
  ASSERT_TRUE(cache.frames().header(1).state.claim(slot_phase::free));
  EXPECT_FALSE(cache.index().begin_load(key, 1));
  EXPECT_EQ(where(cache, key), 0u);
  cache.expect_at_rest();
}

TEST(index, claims_a_slot_only_for_a_key_that_is_absent) {
  using index = hash_index<detail::frame_table>;
  const bare_cache cache;
  const slot_key key{3, 4};
  int claims = 0;
  const auto claim = [&] {
    ++claims;
    return slot_claim{5, cache.frames().header(5).state.claim(slot_phase::free)};
  };
  const index::begin_result first = cache.index().begin_load_with(key, claim);
  EXPECT_TRUE(first.what == index::begun::yes);
  EXPECT_EQ(first.slot, 5u);
  EXPECT_EQ(slot_state::phase(cache.frames().header(5).state.peek()), slot_phase::loading);
  EXPECT_TRUE(cache.index().begin_load_with(key, claim).what == index::begun::present)
      << "while it is loading";
  cache.frames().header(5).state.publish();
  EXPECT_TRUE(cache.index().begin_load_with(key, claim).what == index::begun::present)
      << "when it is resident";
  EXPECT_EQ(claims, 1);
  EXPECT_TRUE(cache.index().begin_load_with({3, 5}, claim).what == index::begun::no_slot);
  EXPECT_EQ(claims, 2);
  cache.frames().unpin(5);
  EXPECT_EQ(where(cache, {3, 5}), std::nullopt);
  cache.expect_at_rest();
}

TEST(index, gives_the_error_of_a_failed_load_to_those_who_wait_and_forgets_the_key) {
  const bare_cache cache;
  const slot_key key{3, 4};
  ASSERT_TRUE(cache.frames().header(0).state.claim(slot_phase::free));
  ASSERT_TRUE(cache.index().begin_load(key, 0));
  lookup_result waited{};
  std::thread waiter([&] { waited = cache.index().lookup(key); });
  // Two pins, the loader's and the waiter's: it waits.
  while (slot_state::pins(cache.frames().header(0).state.peek()) < 2) std::this_thread::yield();
  cache.index().fail_load(key, 0, -ENOSPC);
  waiter.join();
  EXPECT_EQ(waited.what, lookup_result::kind::failed);
  EXPECT_EQ(waited.error, -ENOSPC);
  EXPECT_TRUE(waited.waited);
  EXPECT_EQ(cache.index().lookup(key).what, lookup_result::kind::absent);
  cache.expect_at_rest();
}

// Other writers may keep taking the free cells ahead of one that looks for one, so that it comes
// past full buckets only.
TEST(index, takes_its_counts_back_when_every_bucket_looked_full) {
  bare_cache_options options;
  options.buckets = 2;
  const bare_cache cache(options);
  const std::uint64_t foreign =
      (std::uint64_t{1} << 32) | 8u;  // another tag, and a slot that is free
  for (std::uint64_t b = 0; b < options.buckets; ++b) {
    for (auto& cell : cache.bucket(b).entries) cell.store_relaxed(foreign);
  }
  const slot_key key = key_at_home(1, 1);
  std::thread inserter([&] { insert(cache, key, 0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cache.bucket(0).entries[3].store_relaxed(0);
  inserter.join();
  for (std::uint64_t b = 0; b < options.buckets; ++b) {
    for (auto& cell : cache.bucket(b).entries) {
      if (cell.load_relaxed() == foreign) cell.store_relaxed(0);
    }
  }
  EXPECT_EQ(where(cache, key), 0u);
  EXPECT_EQ(cache.bucket(1).passed.load_relaxed(), 1u) << "counts of vain rounds stayed";
  EXPECT_EQ(cache.bucket(0).passed.load_relaxed(), 0u) << "counts of vain rounds stayed";
  remove(cache, 0);
  cache.expect_at_rest();
}

}  // namespace
}  // namespace gpufs::testing

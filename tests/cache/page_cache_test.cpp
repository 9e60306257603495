// The page cache by itself, in kernels: pages that say in every word whose they are, loaded by a
// function of the test. No file and no service takes part.
#include <gtest/gtest.h>

#include "gpufs/cache/page_cache.cuh"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"

namespace gpufs::testing {

struct page_cache_results {
  atomic_word<std::uint64_t> acquired, loads, errors, no_frames, wrong;
};

constexpr std::uint32_t test_page_words = 512 / 8;

GPUFS_HD inline std::uint64_t page_word(const page_key& key, std::uint64_t i) {
  return mix(key.version * 31 + key.page * 1000003 + i);
}

// Fills a page of 512 bytes with its words; `error` instead, if it is not 0.
template <class Group>
struct page_filler {
  const Group& g;
  page_key key;
  std::int32_t error;
  page_cache_results* results;
  GPUFS_HD std::int32_t operator()(char* to) const {
    if (g.is_leader()) (void)results->loads.fetch_add_relaxed(1);
    for (std::uint32_t i = g.rank(); i < test_page_words; i += g.size())
      reinterpret_cast<std::uint64_t*>(to)[i] = page_word(key, i);
    return error != 0 ? error : 512;
  }
};

template <class Group>
GPUFS_HD void check_page(const Group& g, const mount_ref& fs, const page_key& key,
                         const page_pin& pin, page_cache_results* results) {
  std::uint64_t wrong = pin.valid == 512 ? 0 : 1;
  const auto* words = reinterpret_cast<const std::uint64_t*>(fs.page(pin.frame));
  for (std::uint32_t i = g.rank(); i < test_page_words; i += g.size())
    wrong += words[i] == page_word(key, i) ? 0 : 1;
  if (wrong != 0) (void)results->wrong.fetch_add_relaxed(wrong);
}

template <class Group>
struct hammer_pages_kernel {
  page_cache_results* results;
  std::uint32_t rounds;
  std::uint32_t pages;
  bool failing;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const Group g{};
    page_cache<Group> cache(fs, g, 0);
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const std::uint64_t random = mix(Group::grid_rank() * 1000003 + round);
      const page_key key{7 + random % 2, (random >> 8) % pages};
      const bool fails = failing && (random >> 40) % 8 == 0;
      const std::int32_t error = -static_cast<std::int32_t>(1000 + key.page);
      const page_pin pin =
          cache.acquire(key, page_filler<Group>{g, key, fails ? error : 0, results});
      if (pin.valid >= 0) {
        check_page(g, fs, key, pin, results);
        cache.release(pin.frame);
        if (g.is_leader()) (void)results->acquired.fetch_add_relaxed(1);
      } else if (g.is_leader()) {
        if (pin.valid == -ENOBUFS) (void)results->no_frames.fetch_add_relaxed(1);
        else if (pin.valid == error && failing) (void)results->errors.fetch_add_relaxed(1);
        else (void)results->wrong.fetch_add_relaxed(1);
      }
    }
  }
};

static mount_options tiny_cache(std::uint32_t frames, std::uint32_t rings) {
  mount_options options = base_options();
  options.page_bytes = 512;
  options.cache_bytes = std::uint64_t{512} * frames;
  options.rings = rings;
  options.reclaim_timeout = std::chrono::seconds(2);
  return options;
}

template <class Group>
class page_cache_of_groups : public ::testing::Test {};
using page_cache_groups = ::testing::Types<thread_group, warp_group, block_group>;
TYPED_TEST_SUITE(page_cache_of_groups, page_cache_groups);

TYPED_TEST(page_cache_of_groups, gives_every_group_the_pages_it_asked_for) {
  for (const bool failing : {false, true}) {
    // As many frames as groups that may hold one at a time on a GPU, with few to spare, and three
    // times as many pages.
    const bool gpu = device() == device_kind::cuda;
    const std::uint32_t blocks = gpu ? 16 : 8;
    const std::uint32_t threads = 64;
    const auto groups =
        static_cast<std::uint32_t>(!gpu || std::is_same_v<TypeParam, block_group> ? blocks
                                   : std::is_same_v<TypeParam, warp_group> ? blocks * threads / 32
                                                                           : blocks * threads);
    mount m(tiny_cache(groups + 8, 3));
    const device_array<page_cache_results> results(m, 1);
    const std::uint32_t rounds = gpu ? 300 : 1500;
    launch(m, {blocks, threads, 0, nullptr},
           hammer_pages_kernel<TypeParam>{results.data(), rounds, (groups + 8) * 3, failing});
    const page_cache_results got = results.download()[0];
    EXPECT_EQ(got.wrong.value, 0u);
    EXPECT_EQ(got.no_frames.value, 0u) << "there is a frame for everybody";
    EXPECT_EQ(got.acquired.value + got.errors.value, std::uint64_t{groups} * rounds);
    EXPECT_EQ(got.errors.value > 0, failing);
    const statistics s = m.stats();
    EXPECT_GT(s[counter::evictions], 0u);
    EXPECT_LE(s[counter::evictions], got.loads.value);
    EXPECT_EQ(s[counter::hits] + s[counter::minor_faults] + got.loads.value,
              std::uint64_t{groups} * rounds)
        << "each call is a hit, a minor fault or a load";
  }
}

// ---- when all frames are pinned

struct pinned_cache_results {
  std::uint64_t pinned;     // pages pinned before the first failure
  std::int32_t refused;     // what the call got that found no frame
  std::uint64_t waited_ns;  // before it got that
  std::int32_t hit;         // a resident page, while all are pinned
  std::int32_t afterwards;  // the refused page, when one frame was given back
  std::uint32_t frame_given, frame_got;
};

// One thread pins everything, and one more.
struct pin_everything_kernel {
  pinned_cache_results* results;
  page_cache_results* loads;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const thread_group g{};
    if (thread_group::grid_rank() != 0) return;
    page_cache<thread_group> cache(fs, g, 0);
    pinned_cache_results r{};
    std::uint32_t first = 0;
    for (; r.pinned < fs.layout.frame_count; ++r.pinned) {
      const page_key key{1, r.pinned};
      const page_pin pin = cache.acquire(key, page_filler<thread_group>{g, key, 0, loads});
      if (pin.valid < 0) break;
      if (r.pinned == 0) first = pin.frame;
    }
    const page_key more{1, r.pinned};
    const page_key old{1, 0};
    const std::uint64_t start = platform::now_ns();
    r.refused = cache.acquire(more, page_filler<thread_group>{g, more, 0, loads}).valid;
    r.waited_ns = platform::elapsed_ns(start);
    const page_pin hit = cache.acquire(old, page_filler<thread_group>{g, old, -EIO, loads});
    r.hit = hit.valid;
    cache.release(hit.frame);
    cache.release(first);
    r.frame_given = first;
    const page_pin got = cache.acquire(more, page_filler<thread_group>{g, more, 0, loads});
    r.afterwards = got.valid;
    r.frame_got = got.frame;
    *results = r;
  }
};

TEST(page_cache, refuses_within_its_bound_when_all_frames_are_pinned_and_recovers) {
  for (const std::uint32_t rings : {1u, 3u}) {
    mount_options options = tiny_cache(16, rings);
    options.reclaim_timeout = std::chrono::milliseconds(30);
    mount m(options);
    const device_array<pinned_cache_results> results(m, 1);
    const device_array<page_cache_results> loads(m, 1);
    launch(m, {1, 32, 0, nullptr}, pin_everything_kernel{results.data(), loads.data()});
    const pinned_cache_results got = results.download()[0];
    EXPECT_EQ(got.pinned, 16u) << "every frame can be pinned";
    EXPECT_EQ(got.refused, -ENOBUFS);
    EXPECT_GE(got.waited_ns, 30'000'000u);
    EXPECT_LT(got.waited_ns, 60'000'000'000u);
    EXPECT_EQ(got.hit, 512) << "resident pages are found all the same";
    EXPECT_EQ(got.afterwards, 512);
    EXPECT_EQ(got.frame_got, got.frame_given);
    EXPECT_EQ(m.stats()[counter::no_frames], 1u);
    EXPECT_EQ(loads.download()[0].loads.value, 17u);
  }
}

// Pins stay when the kernel that took them ends; the next one gives them back while its other block
// waits for a frame.
struct pin_for_later_kernel {
  std::uint32_t* frames;
  page_cache_results* loads;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const thread_group g{};
    if (thread_group::grid_rank() != 0) return;
    page_cache<thread_group> cache(fs, g, 0);
    for (std::uint32_t i = 0; i < fs.layout.frame_count; ++i) {
      const page_key key{1, i};
      frames[i] = cache.acquire(key, page_filler<thread_group>{g, key, 0, loads}).frame;
    }
  }
};
struct wait_for_a_frame_kernel {
  const std::uint32_t* frames;
  std::int32_t* result;
  page_cache_results* loads;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g{};
    page_cache<block_group> cache(fs, g, 0);
    if (block_group::grid_rank() == 0) {
      const std::uint64_t start = platform::now_ns();
      for (std::uint32_t attempt = 0; platform::elapsed_ns(start) < 20'000'000; ++attempt)
        platform::pause(attempt);
      cache.release(frames[5]);
    } else {
      const page_key key{2, 0};
      const page_pin pin = cache.acquire(key, page_filler<block_group>{g, key, 0, loads});
      if (g.is_leader()) *result = pin.valid;
    }
  }
};

TEST(page_cache, waits_for_a_frame_that_another_group_gives_back_in_time) {
  mount m(tiny_cache(16, 3));
  const device_array<std::uint32_t> frames(m, 16);
  const device_array<std::int32_t> result(m, 1);
  const device_array<page_cache_results> loads(m, 1);
  launch(m, {1, 32, 0, nullptr}, pin_for_later_kernel{frames.data(), loads.data()});
  m.synchronize();
  launch(m, {2, 32, 0, nullptr},
         wait_for_a_frame_kernel{frames.data(), result.data(), loads.data()});
  EXPECT_EQ(result.download()[0], 512);
  EXPECT_EQ(m.stats()[counter::no_frames], 0u);
}

// Each load takes three times as long as a group waits for a frame that does not come.
template <class Group>
struct slow_filler {
  page_filler<Group> fill;
  std::uint64_t load_ns;
  GPUFS_HD std::int32_t operator()(char* to) const {
    const std::uint64_t start = platform::now_ns();
    for (std::uint32_t attempt = 0; platform::elapsed_ns(start) < load_ns; ++attempt)
      platform::pause(attempt);
    return fill(to);
  }
};
struct slow_pages_kernel {
  page_cache_results* results;
  std::uint64_t load_ns;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g{};
    page_cache<block_group> cache(fs, g, 0);
    const page_key key{1, block_group::grid_rank()};
    const page_pin pin =
        cache.acquire(key, slow_filler<block_group>{{g, key, 0, results}, load_ns});
    if (pin.valid >= 0) {
      check_page(g, fs, key, pin, results);
      cache.release(pin.frame);
    }
    if (!g.is_leader()) return;
    if (pin.valid >= 0) (void)results->acquired.fetch_add_relaxed(1);
    else if (pin.valid == -ENOBUFS) (void)results->no_frames.fetch_add_relaxed(1);
    else (void)results->wrong.fetch_add_relaxed(1);
  }
};

TEST(page_cache, waits_for_a_frame_as_long_as_others_are_loading) {
  constexpr std::uint32_t groups = 12;
  mount_options options = tiny_cache(8, 1);
  options.reclaim_timeout = std::chrono::milliseconds(500);
  options.cpu_threads = groups;
  mount m(options);
  const device_array<page_cache_results> results(m, 1);
  launch(m, {groups, 32, 0, nullptr},
         slow_pages_kernel{results.data(),
                           3 * static_cast<std::uint64_t>(options.reclaim_timeout.count())});
  const page_cache_results got = results.download()[0];
  EXPECT_EQ(got.no_frames.value, 0u);
  EXPECT_EQ(got.acquired.value, groups);
  EXPECT_EQ(got.wrong.value, 0u);
}

// All frames stay pinned; one block reads a page that is there, again and again, until the other
// was refused.
struct refuse_beside_hits_kernel {
  std::int32_t* result;
  atomic_word<std::uint32_t>* done;
  page_cache_results* loads;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g{};
    page_cache<block_group> cache(fs, g, 0);
    if (block_group::grid_rank() == 0) {
      const page_key key{2, 0};
      const page_pin pin = cache.acquire(key, page_filler<block_group>{g, key, 0, loads});
      if (g.is_leader()) {
        *result = pin.valid;
        done->store_release(1);
      }
      return;
    }
    const page_key key{1, 3};
    for (std::uint32_t end = 0; end == 0;) {
      cache.release(cache.acquire(key, page_filler<block_group>{g, key, -EIO, loads}).frame);
      if (g.is_leader()) end = done->load_acquire();
      end = g.broadcast(end);
    }
  }
};

TEST(page_cache, refuses_when_all_frames_stay_pinned_although_they_are_read) {
  mount_options options = tiny_cache(16, 3);
  options.reclaim_timeout = std::chrono::milliseconds(100);
  mount m(options);
  const device_array<std::uint32_t> frames(m, 16);
  const device_array<std::int32_t> result(m, 1);
  const device_array<atomic_word<std::uint32_t>> done(m, 1);
  const device_array<page_cache_results> loads(m, 1);
  launch(m, {1, 32, 0, nullptr}, pin_for_later_kernel{frames.data(), loads.data()});
  m.synchronize();
  launch(m, {2, 32, 0, nullptr},
         refuse_beside_hits_kernel{result.data(), done.data(), loads.data()});
  EXPECT_EQ(result.download()[0], -ENOBUFS);
  EXPECT_EQ(m.stats()[counter::no_frames], 1u);
}

// ---- pages that come unasked

struct offer_results {
  std::uint32_t loads_absent, loads_there, loads_full;
  std::uint32_t pinned_after;
};
struct offer_kernel {
  offer_results* results;
  page_cache_results* loads;
  GPUFS_HD std::uint32_t loads_now() const {
    return static_cast<std::uint32_t>(loads->loads.load_relaxed());
  }
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g{};
    page_cache<block_group> cache(fs, g, 0);
    offer_results r{};
    const page_key key{1, 500};
    cache.offer(key, page_filler<block_group>{g, key, 0, loads});
    g.sync();
    r.loads_absent = loads_now();
    g.sync();
    cache.offer(key, page_filler<block_group>{g, key, 0, loads});
    g.sync();
    r.loads_there = loads_now();
    const page_pin pin = cache.acquire(key, page_filler<block_group>{g, key, -EIO, loads});
    r.pinned_after = pin.valid == 512
                         ? slot_state::pins(detail::frame_table(fs).header(pin.frame).state.peek())
                         : 0;
    for (std::uint32_t i = 0; i + 1 < fs.layout.frame_count; ++i) {
      const page_key other{2, i};
      (void)cache.acquire(other, page_filler<block_group>{g, other, 0, loads});
    }
    g.sync();
    const std::uint32_t before = loads_now();
    g.sync();
    cache.offer({3, 0}, page_filler<block_group>{g, {3, 0}, 0, loads});
    g.sync();
    r.loads_full = loads_now() - before;
    if (g.is_leader()) *results = r;
  }
};

TEST(page_cache, takes_an_offered_page_if_it_is_absent_and_a_frame_is_there) {
  mount m(tiny_cache(16, 1));
  const device_array<offer_results> results(m, 1);
  const device_array<page_cache_results> loads(m, 1);
  launch(m, {1, 32, 0, nullptr}, offer_kernel{results.data(), loads.data()});
  const offer_results got = results.download()[0];
  EXPECT_EQ(got.loads_absent, 1u);
  EXPECT_EQ(got.loads_there, 1u) << "a page that is there is not loaded again";
  EXPECT_EQ(got.pinned_after, 1u) << "an offered page is left unpinned";
  EXPECT_EQ(got.loads_full, 0u) << "no frame, nothing done";
  EXPECT_EQ(m.stats()[counter::no_frames], 0u);
}

}  // namespace gpufs::testing

// Many threads in a cache of a few frames. Each page says in every word whose it is, so that a page
// changed under a pin, half a load or a mistaken hit shows; failing loads must give their own
// error. Invariants as in models/slot_state.pml.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/base/group.cuh"
#include "gpufs/cache/glance.cuh"
#include "support/bare_cache.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

struct stress_parameters {
  const char* name;
  std::uint32_t frames;
  std::uint32_t rings;
  std::uint64_t buckets;
  std::uint64_t keys;
  bool same_hash;  // all keys in one bucket and with one tag
  bool all_fail_sometimes;
};

void PrintTo(const stress_parameters& p, std::ostream* out) { *out << p.name; }

class cache_stress : public ::testing::TestWithParam<stress_parameters> {
 protected:
  static constexpr unsigned threads = 8;
#if defined(__SANITIZE_THREAD__)
  static constexpr int operations = 2000;
  static constexpr int delayed_operations = 200;
#else
  static constexpr int operations = 20000;
  static constexpr int delayed_operations = 400;
#endif

  page_key key(std::uint64_t number) const {
    const slot_key k = GetParam().same_hash
                           ? key_with_hash(0x7700000000ull | (GetParam().buckets - 1), number)
                           : slot_key{number % 3, number};
    return {k.high, k.low};
  }
  static std::uint64_t word(const page_key& k, std::uint64_t i) {
    return mix(k.version * 31 + k.page + i);
  }

  // Who loads a key now, and how often it was loaded: no two loads of a key at once.
  std::array<std::atomic<int>, 64> loading_{};
  std::atomic<std::uint64_t> wrong_{0}, no_frames_{0}, errors_{0}, loads_{0}, glances_{0};

  // A word of a page as view<T> reads it: right, or not there.
  void glance(const bare_cache& cache, std::uint64_t number, std::uint64_t w) {
    const page_key k = key(number);
    const slot_key keys[1] = {k.slot()};
    detail::optimistic_read found[1];
    detail::find_at_a_glance(cache.ref(), keys, found);
    const detail::optimistic_read& g = found[0];
    if (!g.there) return;
    GPUFS_SCHEDULE_POINT("test.glance");
    const auto seen = detail::load_at_a_glance<std::uint64_t>(cache.ref().page(g.frame) + w * 8);
    detail::wait_until_read(seen);
    if (!detail::is_still_there(cache.ref(), g)) return;
    ++glances_;
    if (g.valid != 512 || seen != word(k, w)) ++wrong_;
  }

  void use(const bare_cache& cache, std::mt19937_64& random, int count, unsigned held_max) {
    const thread_group g{};
    page_cache<thread_group> pages(cache.ref(), g, 0);
    struct held {
      std::uint64_t number;
      page_pin pin;
    };
    std::vector<held> pins;
    for (int i = 0; i < count; ++i) {
      const std::uint64_t number = random() % GetParam().keys;
      for (int n = 0; n < 4; ++n) glance(cache, random() % GetParam().keys, random() % 64);
      const bool fails = GetParam().all_fail_sometimes && random() % 8 == 0;
      const page_key k = key(number);
      const page_pin pin = pages.acquire(k, [&](char* to) -> std::int32_t {
        if (loading_[number].fetch_add(1) != 0) ++wrong_;
        ++loads_;
        auto* words = reinterpret_cast<std::uint64_t*>(to);
        for (std::uint64_t w = 0; w < 64; ++w) {
          words[w] = word(k, w);
          if (w == 32) GPUFS_SCHEDULE_POINT("test.load");
        }
        loading_[number].fetch_sub(1);
        return fails ? -static_cast<std::int32_t>(1000 + number) : 512;
      });
      if (pin.valid == -ENOBUFS) {
        ++no_frames_;
        for (const held& h : pins) pages.release(h.pin.frame);
        pins.clear();
        continue;
      }
      if (pin.valid < 0) {
        ++errors_;
        if (pin.valid != -static_cast<std::int32_t>(1000 + number)) ++wrong_;
        continue;
      }
      if (pin.valid != 512) ++wrong_;
      pins.push_back({number, pin});
      while (pins.size() > random() % (held_max + 1)) {
        const std::size_t which = random() % pins.size();
        const held h = pins[which];
        const auto* words = reinterpret_cast<const std::uint64_t*>(cache.ref().page(h.pin.frame));
        const page_key held_key = key(h.number);
        for (std::uint64_t w = 0; w < 64; ++w) wrong_ += words[w] != word(held_key, w) ? 1u : 0u;
        pages.release(h.pin.frame);
        pins.erase(pins.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    for (const held& h : pins) pages.release(h.pin.frame);
  }

  void run(unsigned held_max, bool delays) {
    bare_cache_options options;
    options.frames = GetParam().frames;
    options.rings = GetParam().rings;
    options.buckets = GetParam().buckets;
    options.reclaim_timeout_ns = 2'000'000;
    const bare_cache cache(options);
    std::unique_ptr<random_delays> delayed = delays ? std::make_unique<random_delays>(5) : nullptr;
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        platform::position_on_cpu().processor = t;
        std::mt19937_64 random(t);
        use(cache, random, delays ? delayed_operations : operations, held_max);
      });
    }
    for (std::thread& t : all) t.join();
    EXPECT_EQ(wrong_, 0u);
    EXPECT_GT(loads_, 0u);
    EXPECT_GT(glances_, 0u);
    EXPECT_EQ(errors_ > 0, GetParam().all_fail_sometimes);
    cache.expect_at_rest();
    const std::uint64_t resident_most = options.frames;
    EXPECT_LE(cache.count(counter::evictions), loads_);
    EXPECT_GE(cache.count(counter::evictions) + resident_most + errors_, loads_.load())
        << "each load but the last ones was evicted";
  }
};

INSTANTIATE_TEST_SUITE_P(
    , cache_stress,
    ::testing::Values(stress_parameters{"two_frames", 2, 1, 1, 3, true, false},
                      stress_parameters{"two_frames_failing", 2, 2, 1, 3, true, true},
                      stress_parameters{"colliding", 6, 2, 1, 12, true, false},
                      stress_parameters{"overflowing", 28, 3, 2, 40, true, true},
                      stress_parameters{"spread", 16, 4, 4, 40, false, false}),
    [](const auto& p) { return std::string(p.param.name); });

TEST_P(cache_stress, pages_under_a_pin_are_whole_and_their_own) { run(0, false); }
TEST_P(cache_stress, also_when_threads_are_delayed) { run(0, true); }
TEST_P(cache_stress, also_when_threads_hold_several_pins) { run(2, true); }

}  // namespace
}  // namespace gpufs::testing

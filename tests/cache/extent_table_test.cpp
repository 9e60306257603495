// The device's table of extents.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gpufs/cache/extents.cuh"
#include "support/bare_cache.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint32_t extent_bytes = 1 << 16;

bare_cache_options with_extents(std::uint32_t slots) {
  bare_cache_options options;
  options.extent_slots = slots;
  options.extent_shift = 16;
  return options;
}

TEST(extent_table, finds_the_address_of_every_byte_of_an_extent) {
  const bare_cache cache(with_extents(64));
  extent_table table(cache.ref());
  table.insert(7, 3, 0x1000000, extent_bytes);
  EXPECT_EQ(table.find(7, 3 * std::uint64_t{extent_bytes}, 1), 0x1000000u);
  EXPECT_EQ(table.find(7, 3 * std::uint64_t{extent_bytes} + 512, 4096), 0x1000000u + 512);
  EXPECT_EQ(table.find(7, 4 * std::uint64_t{extent_bytes} - 1, 1), 0x1000000u + extent_bytes - 1);
}

TEST(extent_table, finds_nothing_of_other_versions_and_parts) {
  const bare_cache cache(with_extents(64));
  extent_table table(cache.ref());
  EXPECT_EQ(table.find(7, 0, 1), 0u);
  table.insert(7, 3, 0x1000000, extent_bytes);
  EXPECT_EQ(table.find(8, 3 * std::uint64_t{extent_bytes}, 1), 0u);
  EXPECT_EQ(table.find(7, 2 * std::uint64_t{extent_bytes}, 1), 0u);
  EXPECT_EQ(table.find(7, 4 * std::uint64_t{extent_bytes}, 1), 0u);
}

TEST(extent_table, tells_extents_apart_that_meet_in_the_table) {
  const bare_cache cache(with_extents(4));  // every other search comes past one of the two
  extent_table table(cache.ref());
  table.insert(7, 3, 0x1000000, extent_bytes);
  table.insert(8, 5, 0x2000000, extent_bytes);
  for (std::uint64_t version = 0; version < 50; ++version) {
    for (std::uint64_t number = 0; number < 10; ++number) {
      const std::uint64_t expected = version == 7 && number == 3   ? 0x1000000
                                     : version == 8 && number == 5 ? 0x2000000
                                                                   : 0;
      EXPECT_EQ(table.find(version, number * extent_bytes, 1), expected)
          << version << " " << number;
    }
  }
}

TEST(extent_table, gives_no_range_that_goes_beyond_the_extent) {
  const bare_cache cache(with_extents(64));
  extent_table table(cache.ref());
  table.insert(7, 0, 0x1000000, 5000);  // the last extent of a file is shorter
  EXPECT_EQ(table.find(7, 4096, 904), 0x1000000u + 4096);
  EXPECT_EQ(table.find(7, 4096, 905), 0u);
  EXPECT_EQ(table.find(7, 5000, 1), 0u);
  table.insert(7, 1, 0x2000000, extent_bytes);
  EXPECT_EQ(table.find(7, 2 * extent_bytes - 100, 200), 0u);
}

TEST(extent_table, keeps_the_first_address_it_was_told) {
  const bare_cache cache(with_extents(64));
  extent_table table(cache.ref());
  table.insert(7, 3, 0x1000000, extent_bytes);
  table.insert(7, 3, 0x9000000, extent_bytes);
  EXPECT_EQ(table.find(7, 3 * std::uint64_t{extent_bytes}, 1), 0x1000000u);
}

TEST(extent_table, takes_no_more_when_it_is_half_full) {
  const bare_cache cache(with_extents(64));
  extent_table table(cache.ref());
  for (std::uint64_t n = 0; n < 64; ++n) table.insert(1, n, (n + 1) << 20, extent_bytes);
  for (std::uint64_t n = 0; n < 64; ++n)
    EXPECT_EQ(table.find(1, n * extent_bytes, 1), n < 32 ? (n + 1) << 20 : 0) << "extent " << n;
}

TEST(extent_table, without_slots_finds_and_takes_nothing) {
  const bare_cache cache(with_extents(0));
  extent_table table(cache.ref());
  table.insert(1, 0, 0x1000000, extent_bytes);
  EXPECT_EQ(table.find(1, 0, 1), 0u);
}

TEST(extent_table, never_shows_a_half_filled_entry) {
  const bare_cache cache(with_extents(4096));
  std::atomic<bool> wrong{false};
  std::atomic<std::uint64_t> found{0};
  const auto address = [](std::uint64_t version, std::uint64_t number) {
    return (version << 40) | ((number + 1) << 20);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      extent_table table(cache.ref());
      for (std::uint64_t n = 0; n < 1000; ++n) {
        if (t < 3) table.insert(n % 5, n, address(n % 5, n), extent_bytes);
        const std::uint64_t at = table.find(n % 5, n * extent_bytes + 17, 1);
        if (at != 0) ++found;
        if (at != 0 && at != address(n % 5, n) + 17) wrong = true;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(wrong);
  EXPECT_GT(found, 0u);
  extent_table table(cache.ref());
  for (std::uint64_t n = 0; n < 1000; ++n)
    EXPECT_EQ(table.find(n % 5, n * extent_bytes, 1), address(n % 5, n)) << "extent " << n;
  EXPECT_EQ(cache.ref().at<extent_table_head>(cache.ref().layout.extent_head)->used.load_relaxed(),
            1000u);
}

}  // namespace
}  // namespace gpufs::testing

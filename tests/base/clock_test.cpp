// Durations by a clock that may step back, as a GPU's.
#include <gtest/gtest.h>

#include <memory>

#include "gpufs/cache/arena.cuh"

namespace gpufs::testing {
namespace {

static_assert(platform::duration_ns(5, 8) == 3);
static_assert(platform::duration_ns(8, 8) == 0);
static_assert(platform::duration_ns(8, 5) == 0, "a step back is no time, and not nearly for ever");
static_assert(platform::duration_ns(0, ~std::uint64_t{0}) == ~std::uint64_t{0});

TEST(clock, time_passes_and_never_is_negative) {
  const std::uint64_t begin = platform::now_ns();
  while (platform::elapsed_ns(begin) < 1'000'000) platform::pause(0);
  EXPECT_EQ(platform::elapsed_ns(platform::now_ns() + 3'600'000'000'000), 0u);
}

TEST(clock, a_pull_during_a_step_back_counts_as_a_quick_one) {
  const auto bus = std::make_unique<bulk_state>();
  bus->pull_ns.store_relaxed(8000);
  bus->note_pull(1000, 500, 4096);
  EXPECT_EQ(bus->pull_ns.load_relaxed(), 7000u);
}

TEST(holders, are_counted_below_zero_without_a_change_of_generation) {
  for (const std::uint32_t generation : {0u, 1u, 77u, 0x7fffffffu, 0xffffffffu}) {
    for (const std::int32_t holders : {0, 1, -1, -1000, 1 << 30}) {
      const std::uint64_t word =
          (std::uint64_t{generation} << 32) + static_cast<std::uint64_t>(std::int64_t{holders});
      EXPECT_EQ(open_file::holders_in(word).generation, generation);
      EXPECT_EQ(open_file::holders_in(word).holders, holders);
    }
  }
}

}  // namespace
}  // namespace gpufs::testing

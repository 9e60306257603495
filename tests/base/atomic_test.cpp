// Atomic words: no update is lost, and what was written before a release is read after the acquire
// that sees it.
#include <gtest/gtest.h>

#include <vector>

#include "gpufs/base/atomic.cuh"
#include "gpufs/base/statistics.cuh"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"

namespace gpufs::testing {

struct atomic_words {
  atomic_word<std::uint32_t> relaxed, acquired, released, exchanged, taken;
  atomic_word<std::uint64_t> wide, wide_exchanged;
};

struct count_together_kernel {
  atomic_words* words;
  std::uint32_t rounds;
  GPUFS_HD void operator()(const mount_ref&) const {
    for (std::uint32_t i = 0; i < rounds; ++i) {
      (void)words->relaxed.fetch_add_relaxed(1);
      (void)words->acquired.fetch_add_acquire(1);
      (void)words->released.fetch_add_release(~0u);
      (void)words->wide.fetch_add_relaxed((std::uint64_t{1} << 32) + 1);
      std::uint32_t seen = words->exchanged.load_relaxed();
      while (!words->exchanged.compare_exchange_release(seen, seen + 3)) {
      }
      std::uint32_t taken = words->taken.load_relaxed();
      while (!words->taken.compare_exchange_acquire(taken, taken + 5)) {
      }
      std::uint64_t wide_seen = words->wide_exchanged.load_relaxed();
      while (!words->wide_exchanged.compare_exchange_relaxed(
          wide_seen, wide_seen + (std::uint64_t{1} << 40))) {
      }
    }
  }
};

TEST(atomic_word, loses_no_update) {
  mount m(base_options());
  const device_array<atomic_words> words(m, 1);
  const launch_shape shape{8, 64, 0, nullptr};
  const bool gpu = device() == device_kind::cuda;
  const std::uint32_t rounds =
      gpu ? 500 : 20'000;  // long enough for the CPU device's threads to meet
  launch(m, shape, count_together_kernel{words.data(), rounds});
  const std::uint64_t updates = std::uint64_t{rounds} * shape.blocks * (gpu ? shape.threads : 1);
  const atomic_words got = words.download()[0];
  EXPECT_EQ(got.relaxed.value, updates);
  EXPECT_EQ(got.acquired.value, updates);
  EXPECT_EQ(got.released.value, static_cast<std::uint32_t>(0 - updates));
  EXPECT_EQ(got.exchanged.value, 3 * updates);
  EXPECT_EQ(got.taken.value, 5 * updates);
  EXPECT_EQ(got.wide.value, updates * ((std::uint64_t{1} << 32) + 1));
  EXPECT_EQ(got.wide_exchanged.value, updates << 40);
}

// Two blocks hand a page of plain words to and fro.
struct mailbox {
  atomic_word<std::uint32_t> turn;  // even: the first block's
  std::uint32_t words[256];
  std::uint32_t wrong;
};
constexpr std::uint32_t mailbox_turns = 400;

struct hand_over_kernel {
  mailbox* box;
  GPUFS_HD void operator()(const mount_ref&) const {
    const block_group g{};
    const auto me = static_cast<std::uint32_t>(block_group::grid_rank());
    for (std::uint32_t turn = me; turn < mailbox_turns; turn += 2) {
      if (g.is_leader()) {
        for (std::uint32_t attempt = 0; box->turn.load_acquire() != turn; ++attempt)
          platform::pause(attempt);
      }
      g.sync();
      std::uint32_t wrong = 0;
      for (std::uint32_t i = g.rank(); i < 256; i += g.size()) {
        if (turn != 0 && box->words[i] != turn * 1000 + i) ++wrong;
        box->words[i] = (turn + 1) * 1000 + i;
      }
      if (wrong != 0) box->wrong = turn;
      g.sync();
      if (g.is_leader()) box->turn.store_release(turn + 1);
    }
  }
};

TEST(atomic_word, release_and_acquire_carry_plain_memory) {
  mount m(base_options());
  const device_array<mailbox> box(m, 1);
  launch(m, {2, 64, 0, nullptr}, hand_over_kernel{box.data()});
  const mailbox got = box.download()[0];
  EXPECT_EQ(got.turn.value, mailbox_turns);
  EXPECT_EQ(got.wrong, 0u) << "the first wrong turn, or a later one";
}

TEST(atomic_word, a_failed_exchange_tells_what_is_there) {
  atomic_word<std::uint32_t> word{5};
  std::uint32_t expected = 4;
  EXPECT_FALSE(word.compare_exchange_acquire(expected, 9));
  EXPECT_EQ(expected, 5u);
  EXPECT_TRUE(word.compare_exchange_acquire(expected, 9));
  EXPECT_EQ(word.load_relaxed(), 9u);
}

TEST(counter_set, sorts_latencies_by_powers_of_two) {
  counter_set set{};
  for (const std::uint64_t ns :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{4},
        std::uint64_t{1023}, std::uint64_t{1024}, std::uint64_t{1} << 31, ~std::uint64_t{0}}) {
    set.add_latency(ns);
  }
  std::vector<std::uint64_t> expected(latency_bucket_count, 0);
  expected[0] = 2;  // 0 and 1
  expected[1] = 2;  // 2 and 3
  expected[2] = 1;
  expected[9] = 1;
  expected[10] = 1;
  expected[31] = 2;  // the last one has all that took longer
  for (std::uint32_t b = 0; b < latency_bucket_count; ++b)
    EXPECT_EQ(set.fault_latency[b].value, expected[b]) << "bucket " << b;
}

}  // namespace gpufs::testing

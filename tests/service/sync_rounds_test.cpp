// Syncs of one file: which callers share one, and who is told that it failed.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "service/sync_rounds.hpp"

namespace gpufs::testing {
namespace {

TEST(sync_rounds_test, a_failure_is_returned_until_the_file_was_closed) {
  sync_rounds syncs;
  const auto goes_well = [] { return 0; };
  EXPECT_EQ(syncs.run(3, goes_well), 0);
  EXPECT_EQ(syncs.run(3, [] { return -EIO; }), -EIO);
  EXPECT_EQ(syncs.run(3, [] { return -ENOSPC; }), -ENOSPC) << "its own";
  EXPECT_EQ(syncs.run(3, goes_well), -EIO) << "the first";
  EXPECT_EQ(syncs.run(4, goes_well), 0);
  EXPECT_EQ(syncs.run(4, [] { return -ENOSPC; }), -ENOSPC);
  EXPECT_EQ(syncs.run(4, goes_well), -ENOSPC);
}

TEST(sync_rounds_test, a_sync_that_throws_has_failed) {
  sync_rounds syncs;
  EXPECT_THROW((void)syncs.run(0, []() -> int { throw std::runtime_error("no sync"); }),
               std::runtime_error);
  EXPECT_EQ(syncs.run(0, [] { return 0; }), -EIO);
  EXPECT_EQ(syncs.run(1, [] { return 0; }), 0);
}

// Of a file like Linux's: a sync takes what was written before it began, and one that fails loses
// it and is the only one that says so.
TEST(sync_rounds_test,
     callers_at_the_same_time_get_a_sync_that_began_later_and_all_failures_before_it) {
  constexpr unsigned callers = 6, rounds = 200;
  for (const bool fails : {false, true}) {
    sync_rounds syncs;
    std::mutex mutex;  // guards the next two
    std::mt19937 random(1);
    std::vector<char> durable(std::size_t{callers} * rounds);
    std::vector<std::atomic<bool>> written(durable.size());
    std::atomic<unsigned> wrong{0}, lost{0}, calls{0}, under_way{0};
    const auto sync = [&] {
      if (++under_way != 1) ++wrong;
      ++calls;
      std::vector<std::size_t> taken;
      for (std::size_t i = 0; i < written.size(); ++i) {
        if (written[i].exchange(false)) taken.push_back(i);
      }
      std::this_thread::yield();
      const std::lock_guard lock(mutex);
      const bool has_failed = fails && random() % 50 == 0;
      for (const std::size_t i : taken) durable[i] = has_failed ? 0 : 1;
      --under_way;
      return has_failed ? -EIO : 0;
    };
    std::vector<std::thread> threads;
    for (unsigned c = 0; c < callers; ++c) {
      threads.emplace_back([&, c] {
        for (unsigned i = 0; i < rounds; ++i) {
          const std::size_t own = std::size_t{c} * rounds + i;
          written[own] = true;
          const int result = syncs.run(0, sync);
          const std::lock_guard lock(mutex);
          if (result != 0) ++lost;
          else if (durable[own] == 0) ++wrong;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(lost != 0, fails);
    EXPECT_LE(calls, callers * rounds);
  }
}

}  // namespace
}  // namespace gpufs::testing

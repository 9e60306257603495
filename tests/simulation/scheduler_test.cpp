// The scheduler itself: the same seed does the same, all orders come, time costs nothing, and what
// waits for ever is seen.
#include "simulation/scheduler.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/base/platform.cuh"
#include "simulation/history.hpp"

namespace gpufs::testing {
namespace {

class scheduler : public ::testing::Test {
 protected:
  void SetUp() override {
    if (simulation::obstacle() != nullptr) GTEST_SKIP() << simulation::obstacle();
  }
};

// The order in which some threads come.
std::string order_of(std::uint64_t seed, std::uint64_t* hash = nullptr) {
  std::string order;
  simulation s({.seed = seed});
  s.run([&] {
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (char name = 'a'; name < 'e'; ++name) {
      threads.emplace_back([&, name] {
        for (int i = 0; i < 2; ++i) {
          const std::lock_guard lock(mutex);
          order += name;
        }
      });
    }
    for (std::thread& t : threads) t.join();
  });
  if (hash != nullptr) *hash = s.hash();
  return order;
}

TEST_F(scheduler, does_the_same_with_the_same_seed_and_other_things_with_others) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::uint64_t hash = 0, again = 0;
    const std::string order = order_of(seed, &hash);
    EXPECT_EQ(order.size(), 8u);
    EXPECT_EQ(order_of(seed, &again), order);
    EXPECT_EQ(again, hash);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 50u);
}

TEST_F(scheduler, finds_an_update_that_is_lost) {
  unsigned lost = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    int count = 0;
    simulation s({.seed = seed});
    s.run([&] {
      const auto add = [&] {
        const int before = count;
        simulated::point();
        count = before + 1;
      };
      std::thread other(add);
      add();
      other.join();
    });
    lost += count == 1 ? 1 : 0;
  }
  EXPECT_GT(lost, 0u);
  EXPECT_LT(lost, 50u);
}

TEST_F(scheduler, lets_a_year_pass_at_once) {
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  clock::duration slept{};
  bool timed_out = false;
  simulation s({});
  s.run([&] {
    const auto begin = clock::now();
    std::this_thread::sleep_for(std::chrono::hours(24 * 365));
    slept = clock::now() - begin;
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    timed_out = never.wait_for(lock, std::chrono::hours(1)) == std::cv_status::timeout;
  });
  EXPECT_GE(slept, std::chrono::hours(24 * 365));
  EXPECT_LT(slept, std::chrono::hours(24 * 365) + std::chrono::seconds(1));
  EXPECT_TRUE(timed_out);
  EXPECT_LT(clock::now() - start, std::chrono::seconds(20));
}

TEST_F(scheduler, passes_on_what_wakes_and_what_is_thrown) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    simulation s({.seed = seed});
    EXPECT_THROW(s.run([&] {
      std::mutex mutex;
      std::condition_variable changed;
      int turn = 0;
      std::thread other([&] {
        for (int i = 0; i < 20; ++i) {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return turn % 2 == 1; });
          ++turn;
          changed.notify_one();
        }
      });
      for (int i = 0; i < 20; ++i) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return turn % 2 == 0; });
        ++turn;
        changed.notify_one();
      }
      other.join();
      throw std::string("the end");
    }),
                 std::string);
  }
}

// A thread that nobody joins may still be on its way out of the scheduler when all have ended.
TEST_F(scheduler, has_no_thread_left_when_all_have_ended) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    simulation s({.seed = seed, .switches = 512});
    int passed = 0;
    s.run([&] {
      for (int i = 0; i < 3; ++i) std::thread([&] { ++passed; }).detach();
      while (passed < 3) simulated::sleep_ns(1000);
    });
    EXPECT_EQ(passed, 3);
  }
}

TEST_F(scheduler, sees_threads_that_wait_for_each_other) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        for (std::uint64_t seed = 1; seed <= 100; ++seed) {
          simulation s({.seed = seed});
          s.run([] {
            std::mutex a, b;
            std::thread other([&] {
              const std::lock_guard first(b);
              const std::lock_guard second(a);
            });
            {
              const std::lock_guard first(a);
              const std::lock_guard second(b);
            }
            other.join();
          });
        }
      },
      "no thread can go on");
}

TEST(histories, know_what_a_read_may_find) {
  history h;
  h.add_write({0, 8, 10, 20}, 1);
  h.add_write({0, 4, 30, 40}, 2);
  h.add_write({0, 1, 50, history::for_ever}, 3);
  const auto may_find = [&h](const history::span& at, std::vector<std::uint64_t> values,
                             bool after_error = false) {
    history with = h;
    if (after_error) with.add_error();
    with.add_read(at, values, "a read");
    return with.contradiction().empty();
  };
  EXPECT_TRUE(may_find({0, 1, 1, 5}, {0}));
  EXPECT_FALSE(may_find({0, 1, 1, 5}, {1})) << "before it was written";
  EXPECT_TRUE(may_find({0, 1, 5, 15}, {0}));
  EXPECT_TRUE(may_find({0, 1, 5, 15}, {1}));
  EXPECT_FALSE(may_find({0, 1, 22, 25}, {0})) << "after it was written";
  EXPECT_TRUE(may_find({0, 1, 35, 36}, {1}));
  EXPECT_TRUE(may_find({0, 1, 35, 36}, {2}));
  EXPECT_FALSE(may_find({0, 1, 42, 45}, {1}));
  EXPECT_TRUE(may_find({0, 1, 42, 45}, {1}, true));
  EXPECT_FALSE(may_find({0, 1, 42, 45}, {7}, true));
  EXPECT_TRUE(may_find({4, 2, 42, 45}, {1, 1}));
  EXPECT_FALSE(may_find({4, 2, 42, 45}, {1})) << "it is shorter than the file";
  EXPECT_TRUE(may_find({0, 1, 42, 45}, {2}));
  EXPECT_FALSE(may_find({0, 1, 42, 45}, {3}));
  EXPECT_TRUE(may_find({0, 1, 60, 65}, {2}));
  EXPECT_TRUE(may_find({0, 1, 60, 65}, {3})) << "it may happen late";
}

TEST(histories, know_what_a_read_may_find_after_an_error_and_a_settlement) {
  history h;
  h.add_write({0, 2, 10, 20}, 1);
  h.add_write({0, 2, 30, 40}, 2);
  h.add_error();
  history synced = h;
  synced.add_read({0, 2, 50, 51}, {1, 2}, "the disk after a sync", true);
  EXPECT_FALSE(synced.contradiction().empty()) << "it is checked in full";
  history beside_a_close = synced;
  beside_a_close.add_failed_close(45, 49);
  EXPECT_FALSE(beside_a_close.contradiction().empty()) << "the gclose was over before";
  beside_a_close.add_failed_close(52, 60);
  EXPECT_FALSE(beside_a_close.contradiction().empty()) << "the gclose began later";
  beside_a_close.add_failed_close(45, 60);
  EXPECT_TRUE(beside_a_close.contradiction().empty()) << "the gclose may have lost it meanwhile";
  h.add_read({0, 2, 50, 51}, {1, 2}, "a read");
  EXPECT_TRUE(h.contradiction().empty());
  h.settle();
  EXPECT_FALSE(h.has_error());
  h.add_read({0, 2, 60, 61}, {1, 0}, "a read of what the error has left");
  EXPECT_TRUE(h.contradiction().empty());
  h.add_write({0, 1, 70, 80}, 3);
  h.add_read({0, 2, 90, 91}, {3, 1}, "a read of a new word and an old one");
  EXPECT_TRUE(h.contradiction().empty());
  h.add_read({0, 1, 90, 91}, {2}, "a read of what a new word has replaced");
  EXPECT_FALSE(h.contradiction().empty());
}

}  // namespace
}  // namespace gpufs::testing

// Syncs of one file: which callers share one, and who is told that it failed.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "service/sync_rounds.hpp"

namespace gpufs::testing {
namespace {

// A file like Linux's. A sync takes what was written before it began. One that fails loses it, and
// each descriptor that was open by then is told once. A descriptor that is opened later is told
// too, if no other was told before.
class linux_file {
 public:
  explicit linux_file(std::size_t bytes) : written_(bytes), durable_(bytes) {}

  struct descriptor {
    bool is_untold = false;
  };
  descriptor open() {
    const std::lock_guard lock(mutex_);
    return {is_unseen_};
  }
  void write(std::size_t byte) { written_[byte] = true; }
  int sync(std::vector<descriptor*> all, descriptor& through, bool fails) {
    std::vector<std::size_t> taken;
    for (std::size_t i = 0; i < written_.size(); ++i) {
      if (written_[i].exchange(false)) taken.push_back(i);
    }
    std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    for (const std::size_t i : taken) durable_[i] = fails ? 0 : 1;
    if (fails && !taken.empty()) {
      for (descriptor* d : all) d->is_untold = true;
      is_unseen_ = true;
    }
    if (!through.is_untold) return 0;
    through.is_untold = is_unseen_ = false;
    return -EIO;
  }
  bool is_durable(std::size_t byte) {
    const std::lock_guard lock(mutex_);
    return durable_[byte] != 0;
  }

 private:
  std::vector<std::atomic<bool>> written_;
  std::mutex mutex_;  // guards the members below, and descriptors
  std::vector<char> durable_;
  bool is_unseen_ = false;  // an error that no descriptor was told
};

using kind = sync_rounds::kind;

constexpr const void* descriptor = nullptr;  // where one is enough

TEST(sync_rounds_test, the_first_failure_is_remembered) {
  sync_rounds syncs;
  const auto goes_well = [] { return 0; };
  EXPECT_EQ(syncs.run(kind::sync, descriptor, goes_well), 0);
  EXPECT_EQ(syncs.error(), 0);
  EXPECT_EQ(syncs.run(kind::close, descriptor, [] { return -EIO; }), -EIO);
  EXPECT_EQ(syncs.run(kind::sync, descriptor, [] { return -ENOSPC; }), -ENOSPC) << "its own";
  EXPECT_EQ(syncs.run(kind::sync, descriptor, goes_well), 0);
  EXPECT_EQ(syncs.error(), -EIO);
}

TEST(sync_rounds_test, a_sync_that_throws_has_failed) {
  sync_rounds syncs;
  EXPECT_THROW(
      (void)syncs.run(kind::sync, descriptor, []() -> int { throw std::runtime_error("no sync"); }),
      std::runtime_error);
  EXPECT_FALSE(syncs.is_busy());
  EXPECT_EQ(syncs.run(kind::sync, descriptor, [] { return 0; }), 0);
  EXPECT_EQ(syncs.error(), -EIO);
}

// A report of a close asks more than a sync, and waits for less.
TEST(sync_rounds_test, a_call_of_one_kind_speaks_for_no_other_kind) {
  sync_rounds syncs;
  std::atomic<unsigned> made{0};
  std::atomic<bool> runs{false}, may_end{false};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    (void)syncs.run(kind::sync, descriptor, [&] {
      runs = true;
      while (!may_end) std::this_thread::yield();
      return 0;
    });
  });
  while (!runs) std::this_thread::yield();
  EXPECT_TRUE(syncs.is_busy());
  for (const kind one : {kind::sync, kind::close, kind::close_if_written, kind::close, kind::sync})
    threads.emplace_back([&, one] { (void)syncs.run(one, descriptor, [&] { return ++made, 0; }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that some share a round
  may_end = true;
  for (std::thread& t : threads) t.join();
  EXPECT_GE(made, 3u);
  EXPECT_FALSE(syncs.is_busy());
}

TEST(sync_rounds_test,
     callers_at_the_same_time_get_a_sync_that_began_later_and_all_failures_before_it) {
  constexpr unsigned callers = 6, rounds = 200;
  for (const bool fails : {false, true}) {
    for (const unsigned descriptors : {1u, 2u, 6u}) {
      sync_rounds syncs;
      linux_file file(std::size_t{callers} * rounds);
      std::vector<linux_file::descriptor> opened(descriptors, file.open());
      std::vector<linux_file::descriptor*> all;
      for (linux_file::descriptor& d : opened) all.push_back(&d);
      std::atomic<unsigned> wrong{0}, lost{0}, calls{0}, under_way{0};
      std::vector<std::thread> threads;
      for (unsigned c = 0; c < callers; ++c) {
        threads.emplace_back([&, c] {
          linux_file::descriptor& own = opened[c % descriptors];
          for (unsigned i = 0; i < rounds; ++i) {
            const std::size_t byte = std::size_t{c} * rounds + i;
            file.write(byte);
            int result = syncs.run(kind::sync, &own, [&] {
              if (++under_way != 1) ++wrong;
              const int status = file.sync(all, own, fails && ++calls % 50 == 0);
              --under_way;
              return status;
            });
            if (result == 0) result = syncs.error();
            if (result != 0) ++lost;
            else if (!file.is_durable(byte)) ++wrong;
          }
        });
      }
      for (std::thread& t : threads) t.join();
      EXPECT_EQ(wrong, 0u);
      EXPECT_EQ(lost != 0, fails);
      EXPECT_LE(calls, callers * rounds);
    }
  }
}

// The error has been told to another program, before a descriptor was opened. The sleeps make it
// likely that both callers wait at the same time.
TEST(sync_rounds_test, a_sync_through_one_descriptor_speaks_for_no_other) {
  for (unsigned i = 0; i < 20; ++i) {
    sync_rounds syncs;
    linux_file file(1);
    linux_file::descriptor early = file.open(), outside = file.open();
    file.write(0);
    EXPECT_EQ(file.sync({&early, &outside}, outside, true), -EIO);
    linux_file::descriptor late = file.open();
    std::atomic<bool> runs{false}, may_end{false};
    std::thread before([&] {
      (void)syncs.run(kind::sync, nullptr, [&] {
        runs = true;
        while (!may_end) std::this_thread::yield();
        return 0;
      });
    });
    while (!runs) std::this_thread::yield();
    const auto sync = [&](linux_file::descriptor& d) {
      return syncs.run(kind::sync, &d,
                       [&] { return file.sync({&early, &outside, &late}, d, false); });
    };
    std::thread first([&] { (void)sync(late); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::thread second([&] { EXPECT_EQ(sync(early), -EIO) << "round " << i; });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    may_end = true;
    before.join();
    first.join();
    second.join();
  }
}

}  // namespace
}  // namespace gpufs::testing

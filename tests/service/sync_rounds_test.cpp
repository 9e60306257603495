// Rounds of one file's syncs: which requests share one, who makes it, and who is told of a failure.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
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

constexpr int none = 1;  // no answer yet

// Adds a request that stores its answer.
bool add(sync_rounds& rounds, kind what, std::atomic<int>& told,
         std::shared_ptr<void> place = nullptr) {
  return rounds.add(what, [&told](int status) { told = status; }, std::move(place));
}

TEST(sync_rounds_test, the_first_failure_is_remembered) {
  sync_rounds rounds;
  EXPECT_EQ(rounds.error(), 0);
  for (const int status : {0, -EIO, -ENOSPC, 0}) rounds.note_error(status);
  EXPECT_EQ(rounds.error(), -EIO);
}

TEST(sync_rounds_test, the_result_goes_to_who_asked_and_to_who_made_it) {
  sync_rounds rounds;
  for (const int status : {0, -EDQUOT}) {
    std::atomic<int> told{none};
    ASSERT_TRUE(add(rounds, kind::sync, told));
    EXPECT_EQ(rounds.make([&](kind) { return status; }), status);
    EXPECT_EQ(told, status);
  }
  ASSERT_TRUE(rounds.add(kind::close, nullptr)) << "nobody wants to know";
  EXPECT_EQ(rounds.make([](kind) { return -EIO; }), -EIO);
}

// Requests that come while a round runs wait for no thread, and share one that begins later.
TEST(sync_rounds_test, who_makes_a_round_makes_all_that_were_asked_for_meanwhile) {
  sync_rounds rounds;
  std::atomic<int> first{none}, syncs[2] = {none, none}, closes[2] = {none, none};
  ASSERT_TRUE(add(rounds, kind::sync, first));
  std::vector<kind> made;
  EXPECT_EQ(rounds.make([&](kind what) {
    made.push_back(what);
    if (made.size() == 1) {
      for (const std::size_t i : {0u, 1u}) {
        EXPECT_FALSE(add(rounds, kind::close, closes[i]));
        EXPECT_FALSE(add(rounds, kind::sync, syncs[i]));
      }
      return -EIO;
    }
    EXPECT_EQ(first, -EIO) << "told as soon as its round had ended";
    EXPECT_TRUE(rounds.is_busy());
    return what == kind::sync ? -ENOSPC : 0;
  }),
            -EIO);
  EXPECT_EQ(made, (std::vector{kind::sync, kind::close, kind::sync}));
  for (const std::size_t i : {0u, 1u}) {
    EXPECT_EQ(syncs[i], -ENOSPC);
    EXPECT_EQ(closes[i], 0);
  }
  EXPECT_FALSE(rounds.is_busy());
}

// Who has an answer may close the file and open it again, and must not get its earlier errors.
TEST(sync_rounds_test, no_round_is_under_way_when_the_last_one_is_answered) {
  sync_rounds rounds;
  bool was_busy = true;
  ASSERT_TRUE(rounds.add(kind::sync, [&](int) { was_busy = rounds.is_busy(); }));
  (void)rounds.make([](kind) { return 0; });
  EXPECT_FALSE(was_busy);
}

TEST(sync_rounds_test, a_round_that_throws_has_failed_and_the_others_are_made) {
  sync_rounds rounds;
  std::atomic<int> thrown{none}, later{none};
  ASSERT_TRUE(add(rounds, kind::sync, thrown));
  const auto make_one = [&](kind what) {
    if (what == kind::close) return 0;
    EXPECT_FALSE(add(rounds, kind::close, later));
    throw std::runtime_error("no sync");
  };
  EXPECT_THROW((void)rounds.make(make_one), std::runtime_error);
  EXPECT_EQ(thrown, -EIO);
  EXPECT_EQ(later, 0);
  EXPECT_EQ(rounds.error(), -EIO);
  EXPECT_FALSE(rounds.is_busy());
}

TEST(sync_rounds_test, one_place_is_kept_until_no_round_is_left) {
  sync_rounds rounds;
  std::atomic<int> told{none};
  const auto first = std::make_shared<int>(), second = std::make_shared<int>();
  ASSERT_TRUE(add(rounds, kind::close, told));
  bool is_first = true;
  (void)rounds.make([&](kind) {
    if (is_first) {
      EXPECT_FALSE(add(rounds, kind::sync, told, first));
      EXPECT_FALSE(add(rounds, kind::sync, told, second));
    }
    is_first = false;
    EXPECT_EQ(first.use_count(), 2);
    EXPECT_EQ(second.use_count(), 1);
    return 0;
  });
  EXPECT_EQ(first.use_count(), 1);
}

TEST(sync_rounds_test,
     callers_at_the_same_time_get_a_sync_that_began_later_and_all_failures_before_it) {
  constexpr unsigned callers = 6, rounds_of_each = 200;
  for (const bool fails : {false, true}) {
    for (const unsigned descriptors : {1u, 2u, 6u}) {
      sync_rounds rounds;
      linux_file file(std::size_t{callers} * rounds_of_each);
      std::vector<linux_file::descriptor> opened(descriptors, file.open());
      std::vector<linux_file::descriptor*> all;
      for (linux_file::descriptor& d : opened) all.push_back(&d);
      std::atomic<unsigned> wrong{0}, lost{0}, calls{0}, under_way{0};
      // As file_table::make_round().
      const auto make_one = [&](kind) {
        if (++under_way != 1) ++wrong;
        int status = 0;
        for (linux_file::descriptor& d : opened) {
          const int result = file.sync(all, d, fails && ++calls % 50 == 0);
          rounds.note_error(result);
          if (status == 0) status = result;
        }
        --under_way;
        return status != 0 ? status : rounds.error();
      };
      std::vector<std::thread> threads;
      for (unsigned c = 0; c < callers; ++c) {
        threads.emplace_back([&, c] {
          for (unsigned i = 0; i < rounds_of_each; ++i) {
            const std::size_t byte = std::size_t{c} * rounds_of_each + i;
            file.write(byte);
            std::atomic<int> told{none};
            if (add(rounds, kind::sync, told)) (void)rounds.make(make_one);
            while (told == none) std::this_thread::yield();
            if (told != 0) ++lost;
            else if (!file.is_durable(byte)) ++wrong;
          }
        });
      }
      for (std::thread& t : threads) t.join();
      EXPECT_EQ(wrong, 0u);
      EXPECT_EQ(lost != 0, fails);
    }
  }
}

}  // namespace
}  // namespace gpufs::testing

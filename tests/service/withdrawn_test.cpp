// Requests whose callers have given up: one that no worker has begun never takes effect, however
// late the service comes to it; of one that was begun the caller knows that it may, and what it
// would meet is refused until it has.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "service/path_operations.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t ms = 1'000'000;

class withdrawn_test : public ::testing::TestWithParam<request_code> {
 protected:
  withdrawn_test() {
    options_.workers = 1;
    memory_->write("a", "0123456789");
    memory_->write("b", "other");
  }
  // The request, in a slot that is the caller's.
  static request prepare(service_rig& rig, request_code code, const rig_reply& file,
                         std::uint32_t slot) {
    const channel_view view = rig.memory().view();
    const auto send = [](char* to, std::string_view bytes) {
      std::memcpy(to, bytes.data(), bytes.size());
      return static_cast<std::uint32_t>(bytes.size());
    };
    using namespace std::string_view_literals;
    switch (code) {
      case request_code::write:
        return {code, file.node, send(view.write_staging(slot), "late"sv), 3};
      case request_code::truncate: return {code, file.handle, 0, 4};
      case request_code::unlink: return {code, 0, send(view.staging(slot), "b"sv), 0};
      case request_code::rename: return {code, 0, send(view.staging(slot), "b\0c"sv), 0};
      default:
        return {request_code::open_write, open_reads | open_writes | open_creates,
                send(view.staging(slot), "new"sv), 0644};
    }
  }
  std::string everything() const {
    std::string all;
    for (const char* path : {"a", "b", "c", "new"}) {
      all += std::string(path) +
             (memory_->exists(path) ? "=" + memory_->content(path) : " is not there") + "\n";
    }
    return all;
  }

  service_rig_options options_;
  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_);
};
INSTANTIATE_TEST_SUITE_P(request, withdrawn_test,
                         ::testing::Values(request_code::open_write, request_code::write,
                                           request_code::truncate, request_code::unlink,
                                           request_code::rename),
                         [](const auto& info) {
                           switch (info.param) {
                             case request_code::open_write: return "open";
                             case request_code::write: return "write";
                             case request_code::truncate: return "truncate";
                             case request_code::unlink: return "unlink";
                             default: return "rename";
                           }
                         });

// The worker has taken the request, and stands still until its caller has given up.
TEST_P(withdrawn_test, a_request_that_was_not_begun_never_takes_effect) {
  service_rig rig(io_, options_);
  const rig_reply file = rig.open_to_write("a");
  ASSERT_EQ(file.result, 0);
  const std::string before = everything();
  std::atomic<bool> stands{false}, go_on{false};
  channel_client::answer answer{};
  std::uint32_t slot = 0;
  {
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "service.begin") != 0 || stands.exchange(true)) return;
      while (!go_on) std::this_thread::yield();
    });
    channel_client c = rig.memory().client({50 * ms});
    slot = static_cast<std::uint32_t>(c.acquire());
    c.post(slot, prepare(rig, GetParam(), file, slot));
    answer = c.wait(slot);
    go_on = true;
    // The late answer.
    while (reply_sequence(rig.memory().view().reply(slot).word.load_acquire()) !=
           rig.memory().view().bell(slot).load_acquire())
      std::this_thread::yield();
  }
  EXPECT_TRUE(answer.abandoned);
  EXPECT_FALSE(answer.begun);
  EXPECT_EQ(reply_result(rig.memory().view().reply(slot).word.load_acquire()), -ECANCELED);
  EXPECT_EQ(everything(), before);
  EXPECT_EQ(rig.write(file.node, 0, "go on").result, 5) << "the next request is served";
}

// The backend stands still with it.
TEST_P(withdrawn_test,
       of_a_request_that_was_begun_the_caller_knows_and_what_it_would_meet_is_refused) {
  std::atomic<bool> stands{false}, go_on{false};
  options_.workers = 2;
  service_rig rig(io_, options_);
  const rig_reply file = rig.open_to_write("a");
  ASSERT_EQ(file.result, 0);
  const std::string before = everything();
  const operation on = GetParam() == request_code::write      ? operation::write
                       : GetParam() == request_code::truncate ? operation::truncate
                       : GetParam() == request_code::unlink   ? operation::unlink
                       : GetParam() == request_code::rename   ? operation::rename
                                                              : operation::open;
  fault hang;
  hang.on = on;
  hang.before = [&] {
    stands = true;
    while (!go_on) std::this_thread::yield();
  };
  io_->add(hang);
  channel_client c = rig.memory().client({50 * ms});
  const auto slot = static_cast<std::uint32_t>(c.acquire());
  c.post(slot, prepare(rig, GetParam(), file, slot));
  while (!stands) std::this_thread::yield();
  const channel_client::answer answer = c.wait(slot);
  EXPECT_TRUE(answer.abandoned);
  EXPECT_TRUE(answer.begun);
  EXPECT_EQ(everything(), before);
  const bool writes = GetParam() == request_code::write;
  EXPECT_EQ(c.has_unanswered_write(file.node), writes);
  // A file that it may change is not opened to be written, and a path that it may change stands for
  // nothing else.
  const auto meets_it = [&] {
    const auto unlink = [&](std::string_view path) {
      return rig.call({request_code::unlink, 0, static_cast<std::uint32_t>(path.size()), 0}, path)
          .result;
    };
    switch (GetParam()) {
      case request_code::write:
      case request_code::truncate: return rig.open_to_write("a").result;
      case request_code::unlink: return rig.open_to_write("b").result;
      case request_code::rename: return unlink("c");
      default: return unlink("new");
    }
  };
  EXPECT_EQ(rig.close(file.handle).result, 0);
  EXPECT_EQ(meets_it(), -EBUSY);
  EXPECT_EQ(everything(), before);
  go_on = true;
  while (reply_sequence(rig.memory().view().reply(slot).word.load_acquire()) !=
         rig.memory().view().bell(slot).load_acquire())
    std::this_thread::yield();
  EXPECT_NE(everything(), before);
  EXPECT_FALSE(c.has_unanswered_write(file.node));
  EXPECT_EQ(meets_it(), 0);
}

// The worker has found the file, and stands still before it calls the backend. So nothing is known
// to be under way, and the file is opened again.
TEST_P(withdrawn_test,
       a_request_whose_file_was_closed_before_the_backend_was_called_changes_nothing) {
  const bool writes = GetParam() == request_code::write;
  if (!writes && GetParam() != request_code::truncate) return;  // they name no open file
  options_.workers = 2;
  service_rig rig(io_, options_);
  const rig_reply file = rig.open_to_write("a");
  ASSERT_EQ(file.result, 0);
  const std::string before = everything();
  std::atomic<bool> stands{false}, go_on{false};
  const schedule_hook hook([&](const char* name) {
    if (std::strcmp(name, "service.change") != 0 || stands.exchange(true)) return;
    while (!go_on) std::this_thread::yield();
  });
  channel_client c = rig.memory().client({50 * ms});
  const auto slot = static_cast<std::uint32_t>(c.acquire());
  c.post(slot, prepare(rig, GetParam(), file, slot));
  while (!stands) std::this_thread::yield();
  EXPECT_TRUE(c.wait(slot).begun);
  EXPECT_EQ(rig.close(file.handle).result, 0);
  const rig_reply again = rig.open_to_write("a");
  EXPECT_EQ(again.result, 0);
  go_on = true;
  while (reply_sequence(rig.memory().view().reply(slot).word.load_acquire()) !=
         rig.memory().view().bell(slot).load_acquire())
    std::this_thread::yield();
  EXPECT_EQ(reply_result(rig.memory().view().reply(slot).word.load_acquire()), -EBADF);
  EXPECT_EQ(everything(), before);
  EXPECT_EQ(rig.write(again.node, 0, "go on").result, 5);
}

TEST(path_operations, spellings_of_a_path_that_lead_to_the_same_place_are_the_same) {
  for (const char* path : {"a/b", "./a/b", "a//b", "a/./b", ".//a/././b"})
    EXPECT_EQ(path_operations::plain(path), "a/b");
  for (const char* path : {"/a", "//a", "/./a"}) EXPECT_EQ(path_operations::plain(path), "/a");
  EXPECT_EQ(path_operations::plain("a/../b"), "a/../b") << "a may be a link";
  EXPECT_EQ(path_operations::plain(".a/b."), ".a/b.");
}

// ---- opens that are answered after their callers have given up

class late_open : public ::testing::TestWithParam<request_code> {
 protected:
  late_open() { memory_->write("a", "0123456789"); }
  static std::uint32_t post(service_rig& rig, channel_client& c) {
    const auto slot = static_cast<std::uint32_t>(c.acquire());
    rig.memory().view().staging(slot)[0] = 'a';
    c.post(slot, {GetParam(), open_reads | open_writes, 1, 0});
    return slot;
  }
  void expect_nothing_left(service_rig& rig) {
    EXPECT_TRUE(eventually(
        [&] { return memory_->open_total() > opened_ && rig.files().open_count() == 0; }));
    EXPECT_TRUE(eventually([&] { return memory_->open_now() == 0; }));
    memory_->write_at("a", 10, "more");
    const rig_reply next = rig.open_to_write("a");
    EXPECT_EQ(next.size, 14u) << "it is taken for a file that is being written here";
    EXPECT_EQ(rig.close(next.handle).result, 0);
    EXPECT_EQ(rig.files().open_count(), 0u);
    opened_ = memory_->open_total();
  }
  std::size_t opened_ = 0;  // by the calls before
  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_);
};
INSTANTIATE_TEST_SUITE_P(request, late_open,
                         ::testing::Values(request_code::open, request_code::open_write),
                         [](const auto& p) {
                           return p.param == request_code::open ? "open" : "open_to_write";
                         });

TEST_P(late_open, is_closed_by_its_worker_at_once) {
  std::atomic<bool> go_on{false}, stands{false};
  fault hang;
  hang.on = operation::open;
  hang.before = [&] {
    stands = true;
    while (!go_on) std::this_thread::yield();
  };
  io_->add(hang);
  service_rig rig(io_);
  channel_client c = rig.memory().client({50 * ms});
  const std::uint32_t slot = post(rig, c);
  while (!stands) std::this_thread::yield();
  EXPECT_TRUE(c.wait(slot).abandoned);
  go_on = true;
  expect_nothing_left(rig);
}

// The answer comes between the caller's withdrawal and its look at the answer, so both see each
// other, and both close.
TEST_P(late_open, is_closed_also_when_the_answer_and_the_withdrawal_cross) {
  for (const bool caller_is_first : {false, true}) {
    std::atomic<bool> withdraws{false}, has_answered{false}, has_withdrawn{false}, stands{false};
    io_->add({.on = operation::open, .times_max = 1, .before = [&] {
                stands = true;
                while (!withdraws) std::this_thread::yield();
              }});
    service_rig rig(io_);
    {
      const schedule_hook hook([&](const char* name) {
        if (std::strcmp(name, "service.opened") == 0) {
          has_answered = true;
          while (caller_is_first && !has_withdrawn) std::this_thread::yield();
        } else if (std::strcmp(name, "client.withdraw") == 0) {
          withdraws = true;
          while (!has_answered) std::this_thread::yield();
        }
      });
      channel_client c = rig.memory().client({50 * ms});
      const std::uint32_t slot = post(rig, c);
      while (!stands) std::this_thread::yield();
      const channel_client::answer got = c.wait(slot);
      EXPECT_TRUE(got.abandoned);
      EXPECT_EQ(got.result, -EIO);
      has_withdrawn = true;
    }
    expect_nothing_left(rig);
    memory_->write("a", "0123456789");
  }
}

// ---- numbers of requests that wrap

// One slot, whose requests get the numbers that the test wants.
class wrapped_numbers : public ::testing::Test {
 protected:
  wrapped_numbers() {
    options_.slots = 1;
    options_.openers = false;
    memory_->write("a", "0123456789");
  }
  static void set_next(service_rig& rig, std::uint32_t number) {
    rig.memory().record(0).sequence.store_relaxed(number - 1);
  }
  // An open that hangs in the backend until its caller has given up. Returns when it is answered.
  void withdraw_open(service_rig& rig) {
    std::atomic<bool> go_on{false};
    io_->add({.on = operation::open, .times_max = 1, .before = [&] {
                while (!go_on) std::this_thread::yield();
              }});
    const channel_view view = rig.memory().view();
    channel_client c = rig.memory().client({50 * ms});
    EXPECT_EQ(c.acquire(), 0);
    view.staging(0)[0] = 'a';
    c.post(0, {request_code::open, 0, 1, 0});
    EXPECT_TRUE(c.wait(0).abandoned);
    go_on = true;
    EXPECT_TRUE(eventually([&] {
      return reply_sequence(view.reply(0).word.load_acquire()) == view.bell(0).load_acquire();
    }));
  }
  // Makes a request that changes files, or opens one.
  void serve(service_rig& rig, request_code code, const rig_reply& file) {
    switch (code) {
      case request_code::write: EXPECT_EQ(rig.write(file.node, 0, "9").result, 1); break;
      case request_code::truncate: EXPECT_EQ(rig.call({code, file.handle, 0, 5}).result, 0); break;
      case request_code::unlink:
        memory_->write("b", "other");
        EXPECT_EQ(rig.call({code, 0, 1, 0}, "b").result, 0);
        break;
      default: EXPECT_EQ(rig.open("a").result, 0); break;
    }
  }
  // Waits until the service has no more to do for so many requests. It has a little, after answers.
  static void expect_served(service_rig& rig, std::uint64_t count) {
    EXPECT_TRUE(eventually([&] { return rig.workers().served_count() == count; }));
  }
  // While it lives, the worker that answered the first open has not read `withdrawn` yet.
  class late_worker {
   public:
    ~late_worker() { go_on_ = true; }
    bool has_answered() const { return stands_; }

   private:
    std::atomic<bool> stands_{false}, go_on_{false};
    const schedule_hook hook_{[this](const char* name) {
      if (std::strcmp(name, "service.opened") != 0 || stands_.exchange(true)) return;
      while (!go_on_) std::this_thread::yield();
    }};
  };

  service_rig_options options_;
  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_);
};

TEST_F(wrapped_numbers, no_request_counts_as_withdrawn_because_an_old_one_was) {
  options_.workers = 1;
  for (const request_code code :
       {request_code::open, request_code::write, request_code::truncate, request_code::unlink}) {
    // 0 is there from the start.
    for (const std::uint32_t old : {0u, 5u, 0x7fff'ffffu, 0x8000'0000u, 0xffff'fffeu}) {
      service_rig rig(io_, options_);
      const rig_reply file = rig.open_to_write("a");
      ASSERT_EQ(file.result, 0);
      if (old != 0) {
        set_next(rig, old);
        withdraw_open(rig);
        expect_served(rig, 2);
        EXPECT_EQ(rig.memory().view().withdrawn(0).load_acquire(), old);
      }
      const std::size_t open_before = rig.files().open_count();
      std::size_t opened = 0;
      // All numbers, twice, except those far from where something happens.
      constexpr std::uint64_t half = std::uint64_t{1} << 31;
      std::uint64_t number = rig.memory().record(0).sequence.load_relaxed();
      while (number < 4 * half + 16) {
        const std::uint64_t in_half = number % half;
        number += in_half < 16 || in_half >= half - 16 ? 1 : half - 16 - in_half;
        const ::testing::ScopedTrace trace(
            __FILE__, __LINE__, std::to_string(old) + " withdrawn, then " + std::to_string(number));
        set_next(rig, static_cast<std::uint32_t>(number));
        serve(rig, code, file);
        opened += code == request_code::open ? 1 : 0;
      }
      EXPECT_EQ(rig.read(file.handle, 0, 1).result, 1) << "the worker is done with the opens";
      EXPECT_EQ(rig.files().open_count(), open_before + opened) << "one was closed by its worker";
    }
  }
}

// A worker reads `withdrawn` after it has answered an open. By then the slot may have its next
// request.
TEST_F(wrapped_numbers, an_open_stays_open_if_the_next_number_is_the_first_of_a_half) {
  service_rig rig(io_, options_);
  rig_reply opened;
  {
    const late_worker worker;
    set_next(rig, 0x7fff'ffff);
    opened = rig.open("a");
    EXPECT_TRUE(eventually([&] { return worker.has_answered(); }));
    EXPECT_EQ(rig.read(opened.handle, 0, 4).result, 4);
  }
  expect_served(rig, 2);
  EXPECT_EQ(rig.read(opened.handle, 0, 4).result, 4);
}

TEST_F(wrapped_numbers, a_withdrawn_open_is_closed_also_if_the_next_number_is_the_first_of_a_half) {
  for (const std::uint32_t number : {0x7fff'fffeu, 0x7fff'ffffu}) {
    service_rig rig(io_, options_);
    {
      const late_worker worker;
      set_next(rig, number);
      withdraw_open(rig);
      EXPECT_TRUE(eventually([&] { return worker.has_answered(); }));
      // Others post requests in the slot meanwhile.
      for (int i = 0; i < 2; ++i) EXPECT_EQ(rig.read(1, 0, 4).result, -EBADF);
      EXPECT_EQ(rig.files().open_count(), 1u);
    }
    expect_served(rig, 3);
    EXPECT_EQ(rig.files().open_count(), 0u);
  }
}

}  // namespace
}  // namespace gpufs::testing

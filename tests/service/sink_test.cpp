// Sinks: bytes that kernels send, as the host's function gets them.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpufs/error.hpp"
#include "support/eventually.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

class sinks : public ::testing::Test {
 protected:
  static service_rig_options four_workers() {
    service_rig_options options;
    options.workers = 4;
    return options;
  }
  service_rig rig_{std::make_shared<memory_backend>(), four_workers()};
  static deadline soon() { return deadline::after(60'000'000'000); }
  static int accept(const char*, std::size_t) { return 0; }
};

TEST_F(sinks, get_what_was_sent_to_them) {
  std::vector<std::string> first, second;
  const std::int32_t one =
      rig_.sinks().open([&](const char* b, std::size_t n) { return first.emplace_back(b, n), 0; });
  const std::int32_t two =
      rig_.sinks().open([&](const char* b, std::size_t n) { return second.emplace_back(b, n), 0; });
  EXPECT_NE(one, two);
  EXPECT_EQ(rig_.send(one, "a").result, 0);
  EXPECT_EQ(rig_.send(two, "bb").result, 0);
  EXPECT_EQ(rig_.send(one, std::string(8192, 'c')).result, 0);
  EXPECT_EQ(first, (std::vector<std::string>{"a", std::string(8192, 'c')}));
  EXPECT_EQ(second, (std::vector<std::string>{"bb"}));
}

TEST_F(sinks, give_their_error_to_the_sender) {
  int next = 0;
  const std::int32_t sink = rig_.sinks().open([&](const char*, std::size_t) { return next; });
  for (const int error_number : {ENOSPC, EPIPE, 0, EDQUOT}) {
    next = error_number;
    EXPECT_EQ(rig_.send(sink, "x").result, -error_number);
  }
}

TEST_F(sinks, an_error_with_the_wrong_sign_is_still_an_error) {
  const std::int32_t sink = rig_.sinks().open([&](const char*, std::size_t) { return -ENOSPC; });
  EXPECT_LT(rig_.send(sink, "x").result, 0);
}

TEST_F(sinks, an_exception_is_an_error_and_the_next_call_may_succeed) {
  bool fail = true;
  const std::int32_t sink = rig_.sinks().open([&](const char*, std::size_t) -> int {
    if (fail) throw std::runtime_error("sink");
    return 0;
  });
  EXPECT_EQ(rig_.send(sink, "x").result, -EIO);
  fail = false;
  EXPECT_EQ(rig_.send(sink, "x").result, 0);
}

TEST_F(sinks, one_call_at_a_time_for_one_sink) {
  std::atomic<int> inside{0}, most{0};
  std::uint64_t calls = 0;  // not atomic: the calls are ordered
  const std::int32_t sink = rig_.sinks().open([&](const char*, std::size_t) {
    const int now = ++inside;
    if (now > most) most = now;
    ++calls;
    std::this_thread::yield();
    --inside;
    return 0;
  });
  const random_delays delays(9);
  std::vector<std::thread> senders;
  for (int t = 0; t < 6; ++t) {
    senders.emplace_back([&] {
      for (int i = 0; i < 100; ++i) EXPECT_EQ(rig_.send(sink, "x").result, 0);
    });
  }
  for (std::thread& t : senders) t.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(calls, 600u);
}

TEST_F(sinks, a_slow_one_does_not_hold_up_another) {
  std::atomic<bool> go_on{false}, inside{false};
  const std::int32_t slow = rig_.sinks().open([&](const char*, std::size_t) {
    inside = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
    return 0;
  });
  const std::int32_t fast = rig_.sinks().open(accept);
  std::thread sender([&] { EXPECT_EQ(rig_.send(slow, "x").result, 0); });
  EXPECT_TRUE(eventually([&] { return inside.load(); }));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(rig_.send(fast, "x").result, 0);
  go_on = true;
  sender.join();
}

TEST_F(sinks, a_slow_one_leaves_the_workers_to_others) {
  service_rig_options options;
  options.workers = 1;
  options.slots = 16;
  const auto files = std::make_shared<memory_backend>();
  files->write("/a", "content");
  std::atomic<bool> go_on{false};
  std::atomic<int> calls{0};
  service_rig rig(files, options);
  const std::int32_t slow = rig.sinks().open([&](const char*, std::size_t) {
    ++calls;
    while (!go_on) std::this_thread::sleep_for(1ms);
    return 0;
  });
  std::vector<std::thread> senders;
  for (int i = 0; i < 8; ++i)
    senders.emplace_back([&] { EXPECT_EQ(rig.send(slow, "x").result, 0); });
  EXPECT_TRUE(eventually([&] { return calls > 0; }));
  const std::int32_t fast = rig.sinks().open(accept);
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t handle = rig.open("/a").handle;
    EXPECT_EQ(rig.read(handle, 0, 64).bytes, "content");
    EXPECT_EQ(rig.send(fast, "x").result, 0);
    EXPECT_EQ(rig.close(handle).result, 0);
  }
  EXPECT_EQ(calls, 1);
  go_on = true;
  for (std::thread& t : senders) t.join();
  EXPECT_EQ(calls, 8);
}

TEST_F(sinks, closing_one_that_hangs_ends_in_time_and_so_do_those_that_wait_for_it) {
  std::atomic<bool> go_on{false}, inside{false};
  const auto used = std::make_shared<int>(0);  // by the function, until it returns
  const std::int32_t sink = rig_.sinks().open([&go_on, &inside, used](const char*, std::size_t) {
    inside = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
    ++*used;
    return 0;
  });
  std::thread first([&] { EXPECT_EQ(rig_.send(sink, "x").result, 0); });
  EXPECT_TRUE(eventually([&] { return inside.load(); }));
  std::thread second([&] { EXPECT_EQ(rig_.send(sink, "y").result, -EBADF); });
  EXPECT_TRUE(eventually([&] { return rig_.workers().served_count() == 2; }))
      << "it is not in the queue";
  EXPECT_FALSE(rig_.sinks().close(sink, deadline::after(50'000'000)));
  EXPECT_EQ(rig_.send(sink, "z").result, -EBADF);
  // Its place is free, so there is room for as many as ever.
  for (std::uint32_t i = 0; i < limits::sinks_max; ++i) {
    const std::int32_t other = rig_.sinks().open(accept);
    EXPECT_NE(other, sink);
    EXPECT_EQ(rig_.send(other, "x").result, 0);
  }
  go_on = true;
  first.join();
  second.join();
  EXPECT_TRUE(eventually([&] { return used.use_count() == 1; })) << "its thread is left";
  EXPECT_EQ(*used, 1);
}

TEST_F(sinks, have_their_own_lines_in_the_timeline) {
  const std::int32_t sink = rig_.sinks().open(accept);
  rig_.record().start(10);
  EXPECT_EQ(rig_.send(sink, "x").result, 0);
  const std::string text = rig_.record().stop();
  EXPECT_NE(text.find(R"("args": {"name": "sink 0"})"), std::string::npos) << text;
}

TEST_F(sinks, are_gone_when_they_are_closed) {
  const std::int32_t sink = rig_.sinks().open(accept);
  EXPECT_TRUE(rig_.sinks().close(sink, soon()));
  EXPECT_EQ(rig_.send(sink, "x").result, -EBADF);
  EXPECT_TRUE(rig_.sinks().close(sink, soon()));
  EXPECT_TRUE(rig_.sinks().close(-1, soon()));
  EXPECT_TRUE(rig_.sinks().close(static_cast<std::int32_t>(limits::sinks_max), soon()));
}

TEST_F(sinks, a_close_waits_for_the_call_under_way_and_no_call_comes_after_it) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> closed{false}, late{false};
    std::atomic<int> calls{0};
    const std::int32_t sink = rig_.sinks().open([&](const char*, std::size_t) {
      if (closed) late = true;
      ++calls;
      std::this_thread::sleep_for(100us);
      if (closed) late = true;
      return 0;
    });
    std::vector<std::thread> senders;
    for (int t = 0; t < 3; ++t) {
      senders.emplace_back([&] {
        std::int32_t result = 0;
        while (result == 0) result = rig_.send(sink, "x").result;
        EXPECT_EQ(result, -EBADF);
      });
    }
    EXPECT_TRUE(eventually([&] { return calls > 2; }));
    EXPECT_TRUE(rig_.sinks().close(sink, soon()));
    closed = true;
    for (std::thread& t : senders) t.join();
    EXPECT_FALSE(late);
  }
}

// Who is told that a sink is closed may free what its function uses.
TEST_F(sinks, every_close_waits_for_the_call_under_way_also_after_one_that_gave_up) {
  std::atomic<bool> inside{false}, go_on{false}, has_returned{false};
  const std::int32_t sink = rig_.sinks().open([&](const char*, std::size_t) {
    inside = true;
    EXPECT_TRUE(eventually([&] { return go_on.load(); }));
    has_returned = true;
    return 0;
  });
  std::thread sends([&] { (void)rig_.send(sink, "x"); });
  EXPECT_TRUE(eventually([&] { return inside.load(); }));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(rig_.sinks().close(sink, deadline::after(20'000'000)));
  std::vector<std::thread> closers;
  for (int i = 0; i < 3; ++i) {
    closers.emplace_back([&] {
      EXPECT_TRUE(rig_.sinks().close(sink, soon()));
      EXPECT_TRUE(has_returned);
    });
  }
  std::this_thread::sleep_for(20ms);
  go_on = true;
  for (std::thread& t : closers) t.join();
  sends.join();
}

TEST_F(sinks, there_are_so_many_and_a_closed_one_makes_room) {
  for (std::uint32_t i = 0; i < limits::sinks_max; ++i) EXPECT_GE(rig_.sinks().open(accept), 0);
  try {
    rig_.sinks().open(accept);
    FAIL() << "one too many";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EMFILE);
  }
  EXPECT_TRUE(rig_.sinks().close(17, soon()));
  EXPECT_EQ(rig_.send(rig_.sinks().open(accept), "x").result, 0);
  EXPECT_THROW(rig_.sinks().open(accept), error);
}

}  // namespace
}  // namespace gpufs::testing

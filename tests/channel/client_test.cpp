// The device's side of the channel against a service that a script plays: late, dead, silent, or in
// the way that the test needs. No worker threads.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "support/channel_memory.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t ms = 1'000'000;

class channel_client_test : public ::testing::Test {
 protected:
  channel_client_test() { set_service(service_phase::running); }

  void set_service(service_phase phase) { memory_.view().announce(phase); }
  void answer(std::uint32_t slot, std::uint32_t sequence, std::int32_t result) {
    memory_.view().reply(slot).word.store_release(make_reply_word(sequence, result));
  }
  std::uint32_t bell(std::uint32_t slot) { return memory_.view().bell(slot).load_acquire(); }
  slot_owner owner(std::uint32_t slot) {
    return static_cast<slot_owner>(memory_.record(slot).owner.load_relaxed());
  }
  std::uint64_t count(counter c) {
    return memory_.counters().values[static_cast<std::uint32_t>(c)].load_relaxed();
  }
  channel_client client(std::uint64_t request_ns) { return memory_.client({request_ns}); }
  channel_client patient_client() { return client(60'000 * ms); }

  static std::uint64_t elapsed_ns(std::uint64_t since) { return platform::now_ns() - since; }

  // Beats as the service does, while it lives.
  class heart {
   public:
    explicit heart(channel_memory& memory)
        : thread_([this, view = memory.view()] {
            for (std::uint32_t beat = 1; !end_; ++beat) {
              view.beat(beat);
              std::this_thread::sleep_for(1ms);
            }
          }) {}
    ~heart() {
      end_ = true;
      thread_.join();
    }

   private:
    std::atomic<bool> end_{false};
    std::thread thread_;
  };

  channel_memory memory_{3, limits::staging_bytes_min};
};

TEST(channel_client, a_wide_slot_is_taken_when_asked_for) {
  channel_memory memory(20, limits::staging_bytes_min, 65536);
  memory.view().announce(service_phase::running);
  channel_client c = memory.client({60'000 * ms});
  for (int i = 0; i < 3; ++i) {
    const std::int32_t slot = c.acquire(true);
    ASSERT_GE(slot, 0);
    EXPECT_TRUE(memory.view().layout.is_wide(static_cast<std::uint32_t>(slot)));
  }
  // All three are taken: the next one waits for one of them, and not for any other.
  std::atomic<std::int32_t> got{-1};
  std::thread waiter([&] { got = memory.client({60'000 * ms}).acquire(true); });
  for (int i = 0; i < 17; ++i) EXPECT_GE(c.acquire(), 0);
  EXPECT_EQ(got, -1);
  c.release(8);
  waiter.join();
  EXPECT_EQ(got, 8);
  channel_memory narrow(3, limits::staging_bytes_min);
  EXPECT_GE(narrow.client({60'000 * ms}).acquire(true), 0) << "where there are none, any";
}

TEST_F(channel_client_test, posts_the_request_before_the_bell_and_returns_the_answer) {
  std::thread service([&] {
    std::uint32_t slot = 0;
    while (bell(slot) == 0) slot = (slot + 1) % 3;
    request r{};
    EXPECT_TRUE(memory_.view().request(slot).load(bell(slot), r));
    EXPECT_EQ(r.code, request_code::send);
    EXPECT_EQ(r.handle, 17u);
    EXPECT_EQ(r.length, 300u);
    EXPECT_EQ(r.offset, (std::uint64_t{1} << 40) + 5);
    // A plain read, ordered by the bell alone.
    EXPECT_EQ(std::memcmp(memory_.view().staging(slot), "to the host", 11), 0);
    std::memcpy(memory_.view().staging(slot), "to the device", 13);
    answer(slot, bell(slot), 13);
  });
  channel_client c = patient_client();
  const std::int32_t slot = c.acquire();
  ASSERT_GE(slot, 0);
  std::memcpy(memory_.view().staging(static_cast<std::uint32_t>(slot)), "to the host", 11);
  c.post(static_cast<std::uint32_t>(slot),
         {request_code::send, 17, 300, (std::uint64_t{1} << 40) + 5});
  const channel_client::answer got = c.wait(static_cast<std::uint32_t>(slot));
  EXPECT_EQ(got.result, 13);
  EXPECT_FALSE(got.abandoned);
  EXPECT_EQ(
      std::memcmp(memory_.view().staging(static_cast<std::uint32_t>(slot)), "to the device", 13),
      0);
  c.release(static_cast<std::uint32_t>(slot));
  service.join();
  EXPECT_EQ(count(counter::rpcs), 1u);
  EXPECT_EQ(count(counter::rpc_failures), 0u);
}

TEST_F(channel_client_test, gives_each_slot_to_one_owner) {
  channel_client c = patient_client();
  bool taken[3] = {};
  for (int i = 0; i < 3; ++i) {
    const std::int32_t slot = c.acquire();
    ASSERT_TRUE(slot >= 0 && slot < 3);
    EXPECT_FALSE(taken[slot]);
    taken[slot] = true;
  }
}

TEST_F(channel_client_test, waits_for_a_slot_while_all_are_taken) {
  channel_client c = patient_client();
  for (int i = 0; i < 3; ++i) ASSERT_GE(c.acquire(), 0);
  std::atomic<bool> released{false};
  std::thread holder([&] {
    std::this_thread::sleep_for(20ms);
    released = true;
    c.release(1);
  });
  EXPECT_EQ(patient_client().acquire(), 1);
  EXPECT_TRUE(released);
  holder.join();
}

TEST_F(channel_client_test, gives_up_when_all_slots_stay_taken) {
  channel_client c = client(30 * ms);
  for (int i = 0; i < 3; ++i) ASSERT_GE(c.acquire(), 0);
  const heart beats(memory_);
  const std::uint64_t start = platform::now_ns();
  EXPECT_EQ(c.acquire(), -EIO);
  EXPECT_GE(elapsed_ns(start), 30 * ms);
  EXPECT_EQ(count(counter::rpc_failures), 1u);
}

TEST_F(channel_client_test, gives_up_at_once_when_the_service_is_dead) {
  channel_client c = patient_client();
  const std::int32_t slot = c.acquire();
  ASSERT_GE(slot, 0);
  c.post(static_cast<std::uint32_t>(slot), {request_code::read, 1, 1, 0});
  set_service(service_phase::dead);
  const std::uint64_t start = platform::now_ns();
  const channel_client::answer got = c.wait(static_cast<std::uint32_t>(slot));
  EXPECT_EQ(got.result, -EIO);
  EXPECT_TRUE(got.abandoned);
  EXPECT_EQ(owner(static_cast<std::uint32_t>(slot)), slot_owner::abandoned);
  for (int i = 0; i < 2; ++i) EXPECT_GE(c.acquire(), 0);
  EXPECT_EQ(c.acquire(), -EIO) << "none is left, and none will come back";
  EXPECT_LT(elapsed_ns(start), 30'000 * ms);
}

TEST_F(channel_client_test, takes_the_answer_of_a_service_that_died_afterwards) {
  channel_client c = patient_client();
  const auto slot = static_cast<std::uint32_t>(c.acquire());
  c.post(slot, {request_code::read, 1, 1, 0});
  answer(slot, bell(slot), 4);
  set_service(service_phase::dead);
  EXPECT_EQ(c.wait(slot).result, 4);
}

TEST_F(channel_client_test, time_without_a_heartbeat_does_not_count) {
  channel_client c = client(40 * ms);
  const auto slot = static_cast<std::uint32_t>(c.acquire());
  c.post(slot, {request_code::read, 1, 1, 0});
  std::atomic<bool> answered{false};
  std::thread process([&] {
    // It stands still for ten times the timeout, as after Ctrl-Z, goes on, and answers.
    std::this_thread::sleep_for(400ms);
    answered = true;
    answer(slot, bell(slot),
           7);  // before it beats: the first beat counts for more than this wait may take
    const heart beats(memory_);
    std::this_thread::sleep_for(5ms);
  });
  const channel_client::answer got = c.wait(slot);
  EXPECT_TRUE(answered) << "it gave up while the process stood still";
  EXPECT_EQ(got.result, 7);
  process.join();
}

TEST_F(channel_client_test, a_wait_for_a_slot_stands_still_with_the_process) {
  channel_client c = client(40 * ms);
  for (int i = 0; i < 3; ++i) ASSERT_GE(c.acquire(), 0);
  std::thread process([&] {
    std::this_thread::sleep_for(400ms);
    c.release(1);
  });
  EXPECT_EQ(client(40 * ms).acquire(), 1);
  process.join();
}

TEST_F(channel_client_test, gives_up_after_its_deadline_while_the_heart_beats) {
  const heart beats(memory_);
  channel_client c = client(60 * ms);
  const auto slot = static_cast<std::uint32_t>(c.acquire());
  c.post(slot, {request_code::read, 1, 1, 0});
  const std::uint64_t start = platform::now_ns();
  EXPECT_TRUE(c.wait(slot).abandoned);
  EXPECT_GE(elapsed_ns(start), 60 * ms);
  EXPECT_EQ(count(counter::rpc_failures), 1u);
}

TEST_F(channel_client_test, an_abandoned_slot_is_taken_again_only_after_its_late_answer) {
  channel_client c = client(20 * ms);
  const heart beats(memory_);
  const auto slot = static_cast<std::uint32_t>(c.acquire());
  c.post(slot, {request_code::read, 1, 1, 0});
  const std::uint32_t late = bell(slot);
  ASSERT_TRUE(c.wait(slot).abandoned);
  // The others are free, so the abandoned one is looked at and left alone.
  for (int i = 0; i < 100; ++i) {
    const std::int32_t other = c.acquire();
    ASSERT_NE(other, static_cast<std::int32_t>(slot));
    c.release(static_cast<std::uint32_t>(other));
  }
  EXPECT_EQ(owner(slot), slot_owner::abandoned);
  answer(slot, late, 77);
  bool again = false;
  for (int i = 0; i < 1000 && !again; ++i) {
    const std::int32_t taken = c.acquire();
    ASSERT_GE(taken, 0);
    again = taken == static_cast<std::int32_t>(slot);
    if (!again) c.release(static_cast<std::uint32_t>(taken));
  }
  ASSERT_TRUE(again);
  // The late answer is not taken for that of the next request.
  c = patient_client();
  c.post(slot, {request_code::read, 2, 2, 0});
  EXPECT_NE(bell(slot), late);
  std::thread service([&] {
    std::this_thread::sleep_for(10ms);
    answer(slot, bell(slot), 5);
  });
  EXPECT_EQ(c.wait(slot).result, 5);
  service.join();
}

TEST_F(channel_client_test, fire_and_forget_frees_its_slot_when_it_is_answered) {
  channel_client c = patient_client();
  std::uint32_t slots[3];
  for (std::uint32_t& slot : slots) {
    slot = static_cast<std::uint32_t>(c.acquire());
    c.post(slot, {request_code::close, 9, 0, 0});
    c.abandon(slot);
  }
  std::thread service([&] {
    std::this_thread::sleep_for(10ms);
    answer(slots[1], bell(slots[1]), 0);
  });
  EXPECT_EQ(c.acquire(), static_cast<std::int32_t>(slots[1]));
  service.join();
}

// The answer to an open comes after the caller's last look at it, and perhaps before the worker can
// see that the caller has given up: then no one else closes the file.
TEST_F(channel_client_test, a_file_that_is_opened_while_its_caller_gives_up_is_closed_by_it) {
  for (const request_code code : {request_code::open, request_code::open_write}) {
    for (const std::int32_t result : {0, 100, -ENOENT}) {
      const heart beats(memory_);
      channel_client c = client(20 * ms);
      const auto slot = static_cast<std::uint32_t>(c.acquire());
      c.post(slot, {code, 0, 2, 0});
      const std::uint32_t opened = bell(slot);
      channel_client::answer got{};
      {
        const schedule_hook hook([&](const char* name) {
          if (std::strcmp(name, "client.withdraw") != 0) return;
          memory_.view().reply(slot).handle.store_relaxed(1234);
          answer(slot, opened, result);
        });
        got = c.wait(slot);
      }
      EXPECT_EQ(got.result, -EIO) << "the worker may have closed the file";
      EXPECT_TRUE(got.abandoned);
      EXPECT_EQ(memory_.view().withdrawn(slot).load_acquire(), opened);
      if (result < 0) {
        EXPECT_EQ(bell(slot), opened);
      } else {
        ASSERT_NE(bell(slot), opened);
        request r{};
        EXPECT_TRUE(memory_.view().request(slot).load(bell(slot), r));
        EXPECT_EQ(r.code, request_code::close_written);
        EXPECT_EQ(r.handle, 1234u);
        EXPECT_EQ(owner(slot), slot_owner::abandoned);
        answer(slot, bell(slot), 0);
      }
    }
  }
}

// It has been withdrawn, so the worker closes what it opens.
TEST_F(channel_client_test, an_open_that_is_answered_later_costs_its_slot_nothing) {
  const heart beats(memory_);
  channel_client c = client(20 * ms);
  for (int i = 0; i < 3; ++i) ASSERT_GE(c.acquire(), 0);
  c.post(1, {request_code::open, 0, 2, 0});
  const std::uint32_t opened = bell(1);
  ASSERT_TRUE(c.wait(1).abandoned);
  EXPECT_EQ(memory_.view().withdrawn(1).load_acquire(), opened);
  answer(1, opened, 0);
  EXPECT_EQ(c.acquire(), 1);
  EXPECT_EQ(bell(1), opened);
}

TEST_F(channel_client_test, sequence_numbers_may_wrap_around) {
  channel_client c = patient_client();
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    memory_.record(slot).sequence.store_relaxed(0xfffffffeu);
    memory_.view().bell(slot).store_release(0xfffffffeu);
    answer(slot, 0xfffffffeu, 0);
  }
  for (std::int32_t i = 1; i <= 6; ++i) {
    const auto slot = static_cast<std::uint32_t>(c.acquire());
    c.post(slot, {request_code::read, 1, 1, 0});
    std::thread service([&] {
      std::this_thread::sleep_for(2ms);
      answer(slot, bell(slot), i);
    });
    EXPECT_EQ(c.wait(slot).result, i);
    service.join();
    c.release(slot);
  }
}

TEST_F(channel_client_test, an_abandoned_request_may_be_the_one_that_wraps_around) {
  channel_client c = patient_client();
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    memory_.record(slot).sequence.store_relaxed(0xffffffffu);
    answer(slot, 0xffffffffu, 0);
    memory_.record(slot).owner.store_release(static_cast<std::uint32_t>(slot_owner::busy));
  }
  c.post(2, {request_code::close, 9, 0, 0});
  EXPECT_EQ(bell(2), 0u);
  c.abandon(2);
  const heart beats(memory_);
  EXPECT_EQ(client(10 * ms).acquire(), -EIO) << "its answer is still to come";
  answer(2, 0, 0);
  EXPECT_EQ(c.acquire(), 2);
}

}  // namespace
}  // namespace gpufs::testing

// Particular orders of two or three threads in the index, brought about one step at a time.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "support/bare_cache.hpp"
#include "support/eventually.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

// Stops one thread at its first pass of a schedule point until the test lets it go on.
class gate {
 public:
  // For the hook.
  void pass(const char* name, const char* point) {
    if (std::strcmp(name, point) != 0 || passed_.exchange(true)) return;
    arrived_ = true;
    while (!open_) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  void wait_for_arrival() const {
    while (!arrived_) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> passed_{false}, arrived_{false}, open_{false};
};

enum class role { other, reader, loser, holder };
thread_local role my_role = role::other;

void make_resident(const bare_cache& cache, const slot_key& key, std::uint32_t slot) {
  ASSERT_TRUE(cache.frames().header(slot).state.claim(slot_phase::free));
  ASSERT_TRUE(cache.index().begin_load(key, slot));
  cache.frames().header(slot).state.publish();
  cache.frames().unpin(slot);
}

// A reader that is held up between reading an entry and pinning its slot sees the slot again when a
// group that wants the same key has it, and loses it to a third one. Nothing failed, so the reader
// must not say so: with the error of a failed load it would give a wrong error, or, when it is 0, a
// page that nobody pinned.
TEST(index_order, a_slot_given_back_to_a_faster_loader_is_no_failed_load) {
  const bare_cache cache;
  const slot_key key{1, 7};
  make_resident(cache, key, 0);

  gate reader_pins, loser_inserts;
  const schedule_hook hook([&](const char* name) {
    if (my_role == role::reader) reader_pins.pass(name, "index.pin");
    if (my_role == role::loser) loser_inserts.pass(name, "index.insert");
  });

  lookup_result seen{};
  std::thread reader([&] {
    my_role = role::reader;
    seen = cache.index().lookup(key);
  });
  reader_pins.wait_for_arrival();

  // The page leaves slot 0, and the loser gets the same slot for the same key.
  ASSERT_TRUE(cache.frames().claim_resident(0));
  std::thread loser([&] {
    my_role = role::loser;
    EXPECT_FALSE(cache.index().begin_load(key, 0));
  });
  loser_inserts.wait_for_arrival();
  make_resident(cache, key, 1);

  reader_pins.open();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // the reader comes to wait, if it does
  loser_inserts.open();
  loser.join();
  reader.join();

  EXPECT_NE(seen.what, lookup_result::kind::failed)
      << "error " << seen.error << " of a load that never was";
  if (seen.what == lookup_result::kind::resident) {
    EXPECT_EQ(seen.slot, 1u);
    cache.frames().unpin(seen.slot);
  }
  cache.expect_at_rest();
}

// Of many that miss one key at the same moment, those who find it there behind the latch need not
// wait for the latch.
TEST(index_order, who_sees_the_key_does_not_wait_for_the_latch) {
  const bare_cache cache;
  const slot_key key{1, 7};
  make_resident(cache, key, 0);
  ASSERT_TRUE(cache.frames().header(1).state.claim(slot_phase::free));
  ASSERT_TRUE(cache.frames().header(2).state.claim(slot_phase::free));

  gate holder_latched;
  const schedule_hook hook([&](const char* name) {
    if (my_role == role::holder) holder_latched.pass(name, "index.latched");
  });
  std::thread holder([&] {
    my_role = role::holder;
    EXPECT_FALSE(cache.index().begin_load(key, 1));
  });
  holder_latched.wait_for_arrival();
  std::atomic<bool> told{false};
  std::thread other([&] {
    EXPECT_FALSE(cache.index().begin_load(key, 2));
    told = true;
  });
  EXPECT_TRUE(eventually([&] { return told.load(); })) << "it waits for who has the latch";
  holder_latched.open();
  other.join();
  holder.join();
  cache.expect_at_rest();
}

}  // namespace
}  // namespace gpufs::testing

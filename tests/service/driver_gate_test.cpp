// Who is let into the driver, and what is found to take too long.
#include "service/driver_gate.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "gpufs/base/platform.cuh"
#include "support/eventually.hpp"

namespace gpufs::testing {
namespace {

constexpr device::bulk_limits bounds{50'000'000, 100'000'000};
using found_list = std::vector<driver_gate::request_name>;
constexpr auto nothing_is_answered = [](const driver_gate::request_name&) { return false; };

TEST(driver_gate, one_thread_at_a_time) {
  driver_gate gate(2, 8, {bounds, true});
  std::optional<driver_gate::pass> first(std::in_place, gate, 0, driver_gate::request_name{3, 7});
  ASSERT_TRUE(*first);
  const std::uint64_t start = platform::now_ns();
  EXPECT_FALSE(driver_gate::pass(gate, 1, {4, 8})) << "the first is still inside";
  EXPECT_GE(platform::elapsed_ns(start), bounds.call_ns);
  first.reset();
  EXPECT_TRUE(driver_gate::pass(gate, 1, {4, 8}));
  EXPECT_TRUE(driver_gate::pass(gate, 0, {3, 8})) << "the second has left";
}

TEST(driver_gate, all_at_a_time_where_they_do_not_exclude_each_other) {
  driver_gate gate(2, 8, {bounds, false});
  const driver_gate::pass first(gate, 0, {3, 7}), second(gate, 1, {4, 8});
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
}

TEST(driver_gate, a_call_that_takes_too_long_is_found_once_and_closes_the_gate) {
  driver_gate gate(2, 8, {bounds, false});
  found_list found;
  EXPECT_FALSE(gate.find_stalled(found, nothing_is_answered));
  {
    const driver_gate::pass late(gate, 1, {5, 9});
    ASSERT_TRUE(late);
    ASSERT_TRUE(eventually([&] { return gate.find_stalled(found, nothing_is_answered); }));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].slot, 5u);
    EXPECT_EQ(found[0].sequence, 9u);
    found.clear();
    EXPECT_TRUE(gate.find_stalled(found, nothing_is_answered));
    EXPECT_TRUE(found.empty()) << "it was found before";
    EXPECT_FALSE(driver_gate::pass(gate, 0, {6, 1}));
  }
  EXPECT_FALSE(gate.find_stalled(found, nothing_is_answered));
  EXPECT_TRUE(driver_gate::pass(gate, 0, {6, 1}));
}

TEST(driver_gate, copies_of_which_none_ends_close_the_gate_until_one_ends) {
  driver_gate gate(2, 8, {bounds, false});
  gate.expect_answer({5, 9});
  gate.expect_answer({6, 1});
  found_list found;
  ASSERT_TRUE(eventually([&] {
    found.clear();
    return gate.find_stalled(found, nothing_is_answered);
  }));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].slot, 5u);
  EXPECT_EQ(found[0].sequence, 9u);
  EXPECT_EQ(found[1].slot, 6u);
  EXPECT_TRUE(gate.is_closed());
  EXPECT_FALSE(driver_gate::pass(gate, 0, {7, 1}));
  found.clear();
  EXPECT_FALSE(
      gate.find_stalled(found, [](const driver_gate::request_name& r) { return r.slot == 5; }));
  EXPECT_FALSE(gate.is_closed()) << "the engine works";
  EXPECT_TRUE(driver_gate::pass(gate, 0, {7, 1}));
  // The other one alone.
  ASSERT_TRUE(eventually([&] { return gate.find_stalled(found, nothing_is_answered); }));
  EXPECT_EQ(found.size(), 1u);
  EXPECT_FALSE(gate.find_stalled(found, [](const driver_gate::request_name&) { return true; }));
  EXPECT_FALSE(gate.is_closed());
}

TEST(driver_gate, copies_that_end_now_and_then_are_waited_for) {
  driver_gate gate(1, 8, {bounds, false});
  found_list found;
  const std::uint64_t start = platform::now_ns();
  gate.expect_answer({0, 1});
  // Another one in slot 1 ends between any two looks, also when the slot has a newer one by then.
  for (std::uint32_t n = 1; platform::elapsed_ns(start) < 3 * bounds.copy_ns; ++n) {
    gate.expect_answer({1, n});
    gate.expect_answer({1, n + 1});
    EXPECT_FALSE(gate.find_stalled(found, nothing_is_answered));
  }
}

}  // namespace
}  // namespace gpufs::testing

// Tests the shapes themselves and the code that counts their outcomes. Each shape's outcome is
// forbidden by the orders that it names, and by nothing else. An observed forbidden outcome is
// counted.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "litmus/search.hpp"

namespace gpufs::testing::litmus {
namespace {

template <class Shape>
class LitmusSearch : public ::testing::Test {};
using shapes = ::testing::Types<message_passing, message_through_counts, store_buffering,
                                store_buffering_by_counts, load_buffering, store_after_look,
                                read_twice, write_to_read_causality, handed_on, independent_reads>;
TYPED_TEST_SUITE(LitmusSearch, shapes);

template <class Shape>
bool can_happen(const std::vector<step>& steps) {
  return is_forbidden_among<Shape>(outcome_search(steps, Shape::final_variable).outcomes());
}

TYPED_TEST(LitmusSearch, the_orders_named_forbid_the_outcome) {
  EXPECT_FALSE(can_happen<TypeParam>(steps_of<program<TypeParam, false>>()));
}

TYPED_TEST(LitmusSearch, without_them_it_can_happen) {
  EXPECT_TRUE(can_happen<TypeParam>(steps_of<program<TypeParam, true>>()));
}

// A thread may order two accesses twice, by the first and by the second. At least one order must be
// necessary.
TYPED_TEST(LitmusSearch, each_thread_needs_its_orders) {
  if (program<TypeParam, true>::has_own_weak_steps)
    return;  // there is only one variable, whose order has no name
  const std::vector<step> steps = steps_of<program<TypeParam, false>>();
  for (std::uint32_t thread = 0; thread < TypeParam::threads; ++thread) {
    std::vector<step> without = steps;
    bool orders = false;
    for (step& s : without) {
      if (s.thread != thread || s.what == weakened(s.what)) continue;
      s.what = weakened(s.what);
      orders = true;
    }
    if (orders) {
      EXPECT_TRUE(can_happen<TypeParam>(without)) << "thread " << thread;
    }
  }
}

TYPED_TEST(LitmusSearch, a_forbidden_outcome_that_was_seen_is_counted) {
  histogram h{};
  std::uint64_t forbidden = 0;
  for (std::uint32_t code = 0; code < outcome_codes; ++code) {
    h.counts[code] = code + 1;
    if (TypeParam::forbidden(outcome::of(code))) forbidden += code + 1;
    EXPECT_EQ(outcome::of(code).code(), code);
  }
  EXPECT_GT(forbidden, 0u);
  EXPECT_EQ(h.template forbidden<TypeParam>(), forbidden);
  for (const std::uint32_t code :
       outcome_search(steps_of<program<TypeParam, false>>(), TypeParam::final_variable).outcomes())
    h.counts[code] = 0;
  EXPECT_EQ(h.template forbidden<TypeParam>(), forbidden) << "what is allowed does not count";
}

// A machine that makes everything in order has three outcomes of store buffering. With delayed
// stores there are four.
TEST(LitmusSearch, knows_the_outcomes_of_store_buffering) {
  const auto in_turn =
      outcome_search(steps_of<program<store_buffering, false>>(), no_register).outcomes();
  EXPECT_EQ(in_turn, (std::set<std::uint32_t>{outcome{{0, 1}}.code(), outcome{{1, 0}}.code(),
                                              outcome{{1, 1}}.code()}));
  const auto buffered =
      outcome_search(steps_of<program<store_buffering, true>>(), no_register).outcomes();
  EXPECT_EQ(buffered.size(), 4u);
}

}  // namespace
}  // namespace gpufs::testing::litmus

// The checks of litmus tests detect what they must detect.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "litmus/checks.cuh"

namespace gpufs::testing::litmus {
namespace {

TEST(LitmusChecks, four_counters_are_in_turn_as_their_writer_leaves_them) {
  four_counters c{};
  EXPECT_TRUE(are_in_turn(c));
  for (int n = 0; n < 100; ++n) {
    ++c.value[n % 4];
    EXPECT_TRUE(are_in_turn(c)) << n;
  }
}

// All states of a small space: exactly those that the writer produces.
TEST(LitmusChecks, four_counters_are_in_turn_in_no_other_way) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const four_counters c{
        {5 + (code & 3), 5 + (code >> 2 & 3), 5 + (code >> 4 & 3), 5 + (code >> 6 & 3)}};
    four_counters left{{c.value[0] - 1, c.value[0] - 1, c.value[0] - 1, c.value[0] - 1}};
    bool can_be = false;
    for (int n = 0; n < 4; ++n) {
      ++left.value[n];
      can_be = can_be || std::equal(left.value, left.value + 4, c.value);
    }
    EXPECT_EQ(are_in_turn(c), can_be) << code;
  }
}

TEST(LitmusChecks, pages_of_different_keys_share_no_word_and_no_length) {
  std::set<std::uint64_t> words;
  std::set<std::uint32_t> lengths;
  std::set<std::pair<std::uint64_t, std::uint64_t>> keys;
  for (std::uint64_t n = 0; n < 1000; ++n) {
    const known_page page = known_page::number(n);
    if (!keys.insert({page.key.high, page.key.low}).second) continue;
    lengths.insert(page.valid());
    EXPECT_LE(page.valid(), known_page::words * 8);
    EXPECT_GT(page.valid(), 0u);
    for (std::uint32_t i = 0; i < known_page::words; ++i) words.insert(page.word(i));
  }
  EXPECT_EQ(keys.size(), 16u) << "any halves of two keys are a key";
  EXPECT_EQ(lengths.size(), 16u);
  EXPECT_EQ(words.size(), 16u * known_page::words);
}

TEST(LitmusChecks, files_of_different_generations_share_nothing) {
  std::set<std::uint64_t> versions, sizes, handles;
  for (std::uint32_t generation = 1; generation < 200; generation += 2) {
    const known_file file{3, generation};
    versions.insert(file.version());
    sizes.insert(file.size());
    handles.insert(file.handle());
    EXPECT_EQ(file.size() >> 56, 0u) << "no flag of file_facts";
  }
  EXPECT_EQ(versions.size(), 100u);
  EXPECT_EQ(sizes.size(), 100u);
  EXPECT_EQ(handles.size(), 100u);
}

TEST(LitmusChecks, a_word_of_two_stores_is_not_whole) {
  EXPECT_TRUE(is_whole(twice(7)));
  EXPECT_FALSE(is_whole(twice(7) + 1));
  EXPECT_FALSE(is_whole((twice(7) & 0xffffffffu) | (twice(8) & ~std::uint64_t{0xffffffffu})));
}

TEST(LitmusChecks, what_is_wrong_is_counted) {
  read_counts counts{};
  counts.add(true);
  counts.add(false);
  counts.add(false);
  EXPECT_EQ(counts.reads.value, 3u);
  EXPECT_EQ(counts.wrong.value, 2u);
}

}  // namespace
}  // namespace gpufs::testing::litmus

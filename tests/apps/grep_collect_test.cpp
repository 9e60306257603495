// What the host of a search makes of messages that make no sense: a kernel may send a sink whatever
// it likes.
#include "grep/collect.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

namespace gpufs::grep::testing {
namespace {

constexpr std::size_t items = 4, words = 10;

class message {
 public:
  message& add(const section& s, const std::vector<word_count>& counts) {
    put(&s, sizeof s);
    put(counts.data(), counts.size() * sizeof(word_count));
    return *this;
  }
  int give(collector& to) const { return to.take(bytes_.data(), bytes_.size()); }

 private:
  void put(const void* from, std::size_t count) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + count);
    if (count != 0) std::memcpy(bytes_.data() + at, from, count);
  }
  std::vector<char> bytes_;
};

section of(std::uint32_t item, std::uint32_t count) {
  return {item, count, section_kind::done, 0, 1, no_nul};
}

TEST(grep_collect, keeps_what_makes_sense) {
  collector c(items, words, nullptr);
  EXPECT_EQ(message().add(of(1, 2), {{0, 5}, {words - 1, 7}}).add(of(3, 0), {}).give(c), 0);
  ASSERT_EQ(c.counts().size(), 1u);
  EXPECT_EQ(c.counts()[0].item, 1u);
  EXPECT_EQ(c.counts()[0].first[1].count, 7u);
  EXPECT_TRUE(c.ends()[3].done);
  EXPECT_FALSE(c.ends()[0].done);
}

// The counts' words are places in lists of the host.
TEST(grep_collect, refuses_words_that_do_not_exist) {
  for (const std::uint32_t word : {std::uint32_t{words}, 0x7fff'ffffu, 0xffff'ffffu}) {
    collector c(items, words, nullptr);
    EXPECT_EQ(message().add(of(0, 2), {{1, 1}, {word, 1}}).give(c), EPROTO) << word;
    EXPECT_TRUE(c.counts().empty());
    EXPECT_FALSE(c.ends()[0].done);
  }
  collector lines(items, 0, nullptr);
  EXPECT_EQ(message().add(of(0, 1), {{0, 1}}).give(lines), EPROTO)
      << "where lines are counted there are no words";
}

TEST(grep_collect, refuses_items_and_lengths_that_do_not_exist) {
  collector c(items, words, nullptr);
  EXPECT_EQ(message().add(of(items, 0), {}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(~0u, 0), {}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(0, 2), {{1, 1}}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(0, ~0u), {{1, 1}}).give(c), EPROTO);
  EXPECT_EQ(c.take("1234", 4), EPROTO);
  const std::vector<char> long_one(message_bytes_max + sizeof(word_count));
  EXPECT_EQ(c.take(long_one.data(), long_one.size()), EPROTO);
  EXPECT_TRUE(c.counts().empty());
}

TEST(grep_collect, keeps_nothing_that_leads_elsewhere_of_random_messages) {
  std::mt19937 random(12);
  collector c(items, words, nullptr);
  for (int i = 0; i < 20'000; ++i) {
    message m;
    for (std::uint32_t sections = random() % 4; sections != 0; --sections) {
      std::vector<word_count> counts(random() % 5);
      for (word_count& count : counts)
        count = {static_cast<std::uint32_t>(random() >> (random() % 2 == 0 ? 28 : 0)), 1};
      const auto claimed = static_cast<std::uint32_t>(random() % 8 == 0 ? random() : counts.size());
      m.add(of(static_cast<std::uint32_t>(random() % (items + 1)), claimed), counts);
    }
    (void)m.give(c);
  }
  EXPECT_FALSE(c.counts().empty());
  for (const item_counts& counts : c.counts()) {
    EXPECT_LT(counts.item, items);
    for (std::uint32_t k = 0; k < counts.count; ++k) EXPECT_LT(counts.first[k].word, words);
  }
}

}  // namespace
}  // namespace gpufs::grep::testing

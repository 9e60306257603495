// What the host of a search makes of messages that make no sense: a kernel may send a sink whatever
// it likes.
#include "grep/collect.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "gpufs/error.hpp"
#include "support/seeds.hpp"

namespace gpufs::grep::testing {
namespace {

constexpr std::size_t items = 4, words = 10;
constexpr std::uint64_t bytes_max = std::uint64_t{1} << 30;

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

section of(std::uint32_t item, std::uint32_t count, section_kind kind = section_kind::done) {
  return {item, count, kind, 0, 1, no_nul};
}

TEST(grep_collect, keeps_what_makes_sense) {
  collector c(items, words, bytes_max, nullptr);
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
    collector c(items, words, bytes_max, nullptr);
    EXPECT_EQ(message().add(of(0, 2), {{1, 1}, {word, 1}}).give(c), EPROTO) << word;
    EXPECT_TRUE(c.counts().empty());
    EXPECT_FALSE(c.ends()[0].done);
  }
  collector lines(items, 0, bytes_max, nullptr);
  EXPECT_EQ(message().add(of(0, 1), {{0, 1}}).give(lines), EPROTO)
      << "where lines are counted there are no words";
}

TEST(grep_collect, refuses_items_and_lengths_that_do_not_exist) {
  collector c(items, words, bytes_max, nullptr);
  EXPECT_EQ(message().add(of(items, 0), {}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(~0u, 0), {}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(0, 2), {{1, 1}}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(0, ~0u), {{1, 1}}).give(c), EPROTO);
  EXPECT_EQ(c.take("1234", 4), EPROTO);
  const std::vector<char> long_one(message_bytes_max + sizeof(word_count));
  EXPECT_EQ(c.take(long_one.data(), long_one.size()), EPROTO);
  EXPECT_TRUE(c.counts().empty());
}

TEST(grep_collect, takes_nothing_of_an_item_after_its_end) {
  int ends = 0;
  collector c(items, words, bytes_max, [&](const section&) { ++ends; });
  EXPECT_EQ(message().add(of(0, 1, section_kind::counts), {{1, 1}}).add(of(0, 0), {}).give(c), 0);
  for (const section_kind kind : {section_kind::counts, section_kind::done})
    EXPECT_EQ(message().add(of(0, 1, kind), {{2, 1}}).give(c), EPROTO);
  EXPECT_EQ(message().add(of(1, 0), {}).add(of(1, 1), {{2, 1}}).give(c), EPROTO);
  EXPECT_EQ(c.counts().size(), 1u);
  EXPECT_EQ(ends, 2);
}

// What a kernel that sends for ever makes the host keep.
class kept_by_collector : public ::testing::Test {
 protected:
  static std::size_t allocated() { return mallinfo2().uordblks + mallinfo2().hblkhd; }
  // A message with as many counts as fit.
  static message full(std::uint32_t item, std::uint32_t word) {
    const std::size_t count = (message_bytes_max - sizeof(section)) / sizeof(word_count);
    return message().add(of(item, static_cast<std::uint32_t>(count), section_kind::counts),
                         std::vector<word_count>(count, {word, 1}));
  }
};

TEST_F(kept_by_collector, messages_that_are_refused_are_not) {
  if (gpufs::testing::is_sanitized)
    GTEST_SKIP() << "the allocator's own numbers are not those of mallinfo2()";
  collector c(items, words, bytes_max, nullptr);
  const std::size_t before = allocated();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(full(0, words).give(c), EPROTO);
    EXPECT_EQ(full(items, 0).give(c), EPROTO);
    EXPECT_EQ(message().add(of(0, 0, section_kind::counts), {}).give(c), 0) << "with no counts";
  }
  EXPECT_LT(allocated(), before + (std::size_t{1} << 20));
}

TEST_F(kept_by_collector, counts_are_up_to_the_limit) {
  constexpr std::uint64_t limit = std::uint64_t{4} << 20;
  collector c(items, words, limit, nullptr);
  std::uint64_t kept = 0;
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    const int answer = full(0, 3).give(c);
    EXPECT_TRUE(answer == 0 || answer == ENOSPC) << answer;
    refused += answer == ENOSPC ? 1 : 0;
  }
  for (const item_counts& counts : c.counts())
    kept += sizeof counts + counts.count * sizeof(word_count);
  EXPECT_LE(kept, limit);
  EXPECT_GT(kept, limit - message_bytes_max) << "there was room for more";
  EXPECT_GT(refused, 700);
  EXPECT_EQ(message().add(of(1, 0), {}).give(c), 0) << "the end of an item needs no room";
  try {
    c.check_complete();
    ADD_FAILURE() << "counts are missing";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), ENOSPC);
  }
}

TEST(grep_collect, keeps_nothing_that_leads_elsewhere_of_random_messages) {
  std::mt19937 random(12);
  std::size_t kept = 0;
  for (int round = 0; round < 200; ++round) {
    collector c(items, words, bytes_max, nullptr);
    for (int i = 0; i < 100; ++i) {
      message m;
      for (std::uint32_t sections = random() % 4; sections != 0; --sections) {
        std::vector<word_count> counts(random() % 5);
        for (word_count& count : counts)
          count = {static_cast<std::uint32_t>(random() >> (random() % 2 == 0 ? 28 : 0)), 1};
        const auto claimed =
            static_cast<std::uint32_t>(random() % 8 == 0 ? random() : counts.size());
        const auto kind = random() % 32 == 0 ? section_kind::done : section_kind::counts;
        m.add(of(static_cast<std::uint32_t>(random() % (items + 1)), claimed, kind), counts);
      }
      (void)m.give(c);
    }
    for (const item_counts& counts : c.counts()) {
      EXPECT_LT(counts.item, items);
      for (std::uint32_t k = 0; k < counts.count; ++k) EXPECT_LT(counts.first[k].word, words);
    }
    kept += c.counts().size();
  }
  EXPECT_GT(kept, 1000u);
}

}  // namespace
}  // namespace gpufs::grep::testing

// gpufs::grep::word_list against a splitter that has the whole text.
#include "grep/word_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gpufs/error.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

struct outcome {
  std::vector<std::string> words;
  std::string refusal;  // with it, the words are of no use

  bool operator==(const outcome&) const = default;
};

outcome split(const std::string& text) {
  outcome found;
  std::size_t number = 1;
  for (std::size_t at = 0; at <= text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string word = text.substr(at, end - at);
    if (word.ends_with('\r')) word.pop_back();
    const std::string line = "line " + std::to_string(number) + ": the word ";
    if (word.substr(0, 255).find('\0') != std::string::npos) return {{}, line + "has a NUL byte"};
    if (word.size() > 255) return {{}, line + "is longer than 255 bytes"};
    if (!word.empty()) found.words.push_back(word);
    at = end + 1;
  }
  return found;
}

outcome take_in_pieces(const std::string& text, const std::vector<std::size_t>& sizes) {
  grep::word_list list("LIST");
  try {
    std::size_t at = 0;
    for (const std::size_t size : sizes) {
      list.take(std::string_view(text).substr(at, size));
      at += size;
    }
    return {list.end(), {}};
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EINVAL);
    EXPECT_EQ(e.path(), "LIST");
    const std::string said = e.what();
    return {{}, said.substr(0, said.find(": LIST"))};
  }
}

std::string random_list(std::mt19937_64& random) {
  static const std::string parts[] = {"a",    "b\n", "\n",   "\r\n", "\r",   std::string(1, '\0'),
                                      "\xff", " ",   "word", "x",    "x\r\n"};
  std::string text;
  const std::size_t count = random() % 40;
  for (std::size_t k = 0; k < count; ++k) {
    // Lines near the longest word, and one that no piece holds.
    if (random() % 8 == 0) text += std::string(250 + random() % 9, 'y');
    if (random() % 200 == 0) text += std::string(100'000, 'z');
    const std::string& part = parts[random() % std::size(parts)];
    if (part[0] != '\0' || random() % 8 == 0) text += part;
  }
  return text;
}

TEST(GrepWordList, SplitsAsIfTheTextWereWhole) {
  std::size_t refused = 0;
  std::size_t words = 0;
  for (const std::uint64_t seed : seeds()) {
    std::mt19937_64 random(seed);
    for (int k = 0; k < (is_sanitized ? 50 : 500); ++k) {
      const std::string text = random_list(random);
      const outcome expected = split(text);
      std::vector<std::size_t> sizes;
      const std::size_t size_max = std::size_t{1} << random() % 18;
      for (std::size_t left = text.size(); left != 0; left -= sizes.back())
        sizes.push_back(std::min<std::size_t>(left, random() % size_max + 1));
      ASSERT_EQ(take_in_pieces(text, sizes), expected) << "seed " << seed << ", list " << k;
      refused += expected.refusal.empty() ? 0 : 1;
      words += expected.words.size();
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(words, 0u);
}

TEST(GrepWordList, RefusesALongLineBeforeItsEndComes) {
  grep::word_list list("LIST");
  list.take("good\n" + std::string(255, 'x'));
  list.take("\r");
  EXPECT_THROW(list.take("y"), error);
  grep::word_list other("LIST");
  EXPECT_THROW(other.take(std::string(256, 'x')), error);
}

}  // namespace
}  // namespace gpufs::testing

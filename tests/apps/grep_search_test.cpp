// gpufs::grep::search: counts.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "apps/grep_oracle.hpp"
#include "apps/grep_random_text.hpp"
#include "grep/tally.cuh"
#include "grep/window.cuh"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

void search_random_files(grep_world& world, std::uint64_t first_seed, std::uint64_t seeds) {
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds && !::testing::Test::HasFailure();
       ++seed) {
    random_text random(seed);
    std::map<std::string, std::string> files;
    std::set<std::string> words;
    const std::size_t count = 1 + random.below(8);
    for (std::size_t f = 0; f < count; ++f) {
      std::string& text = files["f" + std::to_string(f)] = random.file();
      for (int w = 0; w < 6; ++w) words.insert(random.word(text));
    }
    words.erase("");
    expect_same(expected_counts(files, words), world.search(files, words),
                "seed " + std::to_string(seed));
  }
}

TEST(GrepSearch, CountsAsANaiveSearchDoes) {
  grep_world world;
  search_random_files(world, first_seeds(1).front(), is_sanitized ? 3 : 6);
}

TEST(GrepSearch, CountsTheSameWithOtherPagesAndSmallCaches) {
  for (const std::uint64_t page_bytes : {512, 65536}) {
    mount_options options = grep_world::grep_options();
    options.page_bytes = page_bytes;
    options.cache_bytes = page_bytes * 64;
    grep_world world(options);
    search_random_files(world, 1000 + page_bytes, 4);
  }
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return text;
}

TEST(GrepSearch, IgnoresTheCaseAsASearchOfLowerCaseDoes) {
  grep_world world;
  for (const std::uint64_t seed : first_seeds(3)) {
    if (::testing::Test::HasFailure()) break;
    random_text random(seed);
    const auto capitals = [&random](std::string text) {
      for (char& c : text)
        c = random.below(2) == 0 && c >= 'a' && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c;
      return text;
    };
    std::map<std::string, std::string> files;
    std::map<std::string, std::string> lower_files;
    std::map<std::string, std::string> spellings;  // by the word in lower case
    std::vector<std::string> words;
    std::vector<grep::file_item> list;
    for (std::size_t f = 0; f < 4; ++f) {
      const std::string path = "f" + std::to_string(f);
      const std::string text = random.file();
      files[path] = capitals(text);
      lower_files[path] = lower(text);
      world.backend().write(path, files[path]);
      list.push_back({path, text.size()});
      for (int w = 0; w < 6; ++w) {
        words.push_back(capitals(random.word(text)));
        if (!words.back().empty()) spellings.emplace(lower(words.back()), words.back());
      }
    }
    std::set<std::string> lower_words;
    for (const auto& [word, spelling] : spellings) lower_words.insert(word);
    counts expected;
    for (const auto& [key, count] : expected_counts(lower_files, lower_words))
      expected[{key.first, spellings.at(key.second)}] = count;
    const grep::dictionary dictionary(words, grep::letter_case::ignored);
    expect_same(expected, world.search_list(dictionary, list), "seed " + std::to_string(seed));
  }
}

TEST(GrepSearch, OfMatchesThatOverlapTheLeftmostCounts) {
  struct example {
    const char* text;
    const char* word;
    std::uint64_t count;
  };
  static const example examples[] = {
      {"a-a-a", "a-a", 1},
      {"a-a-a-a", "a-a", 2},
      {"xa-a-a-a", "a-a", 1},
      {"a-a a-a", "a-a", 2},
      {"----", "--", 2},
      {"-----", "--", 2},
      {"a--", "--", 0},
      {"a---", "--", 1},
      {"--a", "--", 0},
      {"''''''", "''", 3},
      {"bye-bye-bye", "bye-bye", 1},
      {"foo foobar foo", "foo", 2},
      {"foo", "foo", 1},
      {"_foo", "foo", 0},
      {"foo-", "foo", 1},
      {"\xe9"
       "foo\xff",
       "foo", 1},
      {"-foo", "-foo", 1},
      {"x-foo", "-foo", 0},
      {"--foo", "-foo", 1},
      {"C++", "C++", 1},
      {"C+++", "C++", 1},
      {"C++x", "C++", 0},
      {"a.b.c", "a.b", 1},
      {"a b a b a", "a b a", 1},
      {"a b a b a b a", "a b a", 2},
      {"aa", "a", 0},
      {"a\na\r\na", "a", 3},
      {"banana", "ana", 0},
      {"don't don'tx don", "don't", 1},
      {"- - -", "- -", 1},
  };
  grep_world world;
  for (const example& e : examples) {
    for (const std::string& text :
         {std::string(e.text), std::string(e.text) + "\n", "\n" + std::string(e.text) + "\r\n"}) {
      EXPECT_EQ(count_word(text, e.word), e.count) << text;
      const counts found = world.search({{"f", text}}, {e.word});
      EXPECT_EQ(found.empty() ? 0 : found.begin()->second, e.count) << e.word << " in " << text;
    }
  }
}

// Windows, parts and pages end at multiples of 4096; a word is moved across such places byte by
// byte.
TEST(GrepSearch, FindsWordsAtEveryPlaceOfAWindow) {
  grep_world world;
  const std::string longest = "b" + repeat("x", 253) + "e";
  const std::set<std::string> words = {"needle", longest, "a-a", "-", longest.substr(1)};
  for (const std::size_t border : {std::size_t{4096}, std::size_t{8192}, std::size_t{12288},
                                   std::size_t{1} << 17, std::size_t{1} << 18}) {
    std::map<std::string, std::string> files;
    for (std::size_t shift = 0; shift < 600; shift += is_sanitized ? 37 : shift % 8 == 7 ? 25 : 1) {
      const std::size_t at = border - 560 + shift;
      std::string text(border + 20'000, ' ');
      text.replace(at, 6, "needle");
      text.replace(at + 7, 5, "a-a-a");
      text.replace(at + 13, longest.size(), longest);
      text.resize(at + 13 + longest.size() + (shift % 3 == 0 ? 0 : 5000));
      files["f" + std::to_string(shift)] = text;
      // The character behind decides, also where it is the last that is looked at.
      if (shift % 3 != 0)
        files["g" + std::to_string(shift)] = text.replace(at + 13 + longest.size(), 1, "_");
    }
    expect_same(expected_counts(files, words), world.search(files, words),
                "border " + std::to_string(border));
  }
}

TEST(GrepSearch, FollowsChainsAcrossWindowsAndParts) {
  grep_world world;
  std::set<std::string> words = {"a-a",           "a-a-a",        "-", "--", "---",
                                 repeat("-", 30), repeat("-", 31)};
  std::map<std::string, std::string> files;
  for (const std::size_t size :
       {5000, 8464, 20'001, gpufs::testing::is_sanitized ? 60'003 : 300'003}) {
    files["a-" + std::to_string(size)] = repeat("a-", size / 2) + "a";
    files["b-" + std::to_string(size)] = "b" + repeat("-a", size / 2);
    files["dashes" + std::to_string(size)] = repeat("-", size);
    files["mixed" + std::to_string(size)] = repeat("a-a-a--a ", size / 9) + repeat("-", size / 3);
  }
  expect_same(expected_counts(files, words), world.search(files, words), "long chains");

  words = {repeat("-", 255), repeat("-", 254), "a" + repeat("-", 253) + "a", "--"};
  files = {{"dashes", repeat("-", 20'001)}, {"a", repeat("a" + repeat("-", 253), 100) + "a"}};
  expect_same(expected_counts(files, words), world.search(files, words), "long words");
}

TEST(GrepSearch, SharesOutLargeFilesWithoutLosingMatches) {
  grep_world world;
  std::mt19937 random(5);
  std::string lines;
  std::string one_line;
  while (lines.size() < 1'500'000) {
    static const char* const pieces[] = {"foo",         "bar", "a-a",  "a-a-a",
                                         "bye-bye-bye", "x",   "'tis", "foo_bar"};
    const std::string piece = pieces[random() % std::size(pieces)];
    lines += piece + (random() % 5 == 0 ? "\n" : " ");
    one_line += piece + (random() % 50 == 0 ? " " : "-");
  }
  const std::map<std::string, std::string> files = {{"lines", lines}, {"one_line", one_line}};
  const std::set<std::string> words = {"foo",  "bar",     "a-a", "bye-bye",
                                       "'tis", "foo-bar", "x-x", "x x"};
  expect_same(expected_counts(files, words), world.search(files, words), "parts");
  EXPECT_EQ(world.last.bytes, lines.size() + one_line.size());
}

TEST(GrepSearch, IsRightWhateverTheSizeHints) {
  grep_world world;
  const std::map<std::string, std::string> files = {
      {"large", repeat("foo bar\n", 100'000)}, {"small", "foo"}, {"empty", ""}};
  const std::set<std::string> words = {"foo", "bar"};
  const counts expected = expected_counts(files, words);
  world.search(files, words);
  const grep::dictionary dictionary({words.begin(), words.end()});
  for (const std::uint64_t hint : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3'000'000}}) {
    expect_same(expected,
                world.search_list(dictionary, {{"small", hint}, {"large", hint}, {"empty", hint}}),
                "hint " + std::to_string(hint));
    EXPECT_EQ(world.last.bytes, files.at("large").size() + 3);
  }
}

// More different matches in one window than a block's table has room for, and messages of the
// smallest size.
TEST(GrepSearch, CountsMoreWordsThanABlockHasRoomFor) {
  grep_world world;
  std::mt19937 random(6);
  std::string text;
  while (text.size() < 8000) {
    for (std::size_t k = random() % 3 + 1; k != 0; --k)
      text += static_cast<char>('a' + random() % 26);
    text += "- ."[random() % 3];
  }
  std::set<std::string> words;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (std::size_t end = at;
         (at == 0 || !is_word_byte(text[at - 1])) && end < at + 16 && end < text.size(); ++end) {
      if (!is_word_byte(text[end])) words.insert(text.substr(at, end - at));
    }
  }
  words.erase("");
  const std::map<std::string, std::string> files = {{"f", text}};
  const counts expected = expected_counts(files, words);
  ASSERT_GT(expected.size(), grep::tally_slots + 1000);
  expect_same(expected, world.search(files, words), "many words");
}

// So many that several threads make the result.
TEST(GrepSearch, FindsManyWordsInManyFiles) {
  grep_world world;
  std::set<std::string> words;
  for (int w = 0; w < 1500; ++w) words.insert("w" + std::to_string(w));
  std::map<std::string, std::string> files;
  counts expected;
  for (int f = 0; f < 200; ++f) {
    const std::string path = "f" + std::to_string(f);
    std::string& text = files[path];
    for (int w = f % 3; w < 1500; w += 1 + f % 4) {
      const std::string word = "w" + std::to_string(w);
      text += repeat(word + " ", 1 + (f + w) % 3);
      expected[{path, word}] = 1 + static_cast<std::uint64_t>(f + w) % 3;
    }
  }
  ASSERT_GT(expected.size(), 100'000u);
  expect_same(expected, world.search(files, words), "many");
}

TEST(GrepSearch, CountsOneWordOften) {
  grep_world world;
  const std::map<std::string, std::string> files = {{"f", repeat("a ", 2'000'000)}};
  EXPECT_EQ(world.search(files, {"a"}).at({"f", "a"}), 2'000'000u);
}

TEST(GrepSearch, SortsByPathAndWordBytewise) {
  grep_world world;
  std::map<std::string, std::string> files;
  for (const char* path : {"b", "a", "a/b", "a.b", "\xff", "Z"}) files[path] = "foo Foo -foo \xff";
  expect_same(expected_counts(files, {"foo", "Foo", "-foo", "\xff"}),
              world.search(files, {"foo", "Foo", "-foo", "\xff"}), "order");
  // As the list has them in any order.
  const grep::dictionary words({"foo", "Foo"});
  EXPECT_EQ(world.search_list(words, {{"b", 1}, {"Z", 1}, {"a/b", 1}, {"a", 1}}).size(), 8u);
}

TEST(GrepSearch, FindsNothingInNothing) {
  grep_world world;
  EXPECT_TRUE(world.search(std::map<std::string, std::string>{}, {"foo"}).empty());
  EXPECT_TRUE(world.search({{"f", "foo"}}, {}).empty());
  EXPECT_EQ(world.last.files, 1u);
  EXPECT_TRUE(world.search({{"empty", ""}}, {"foo"}).empty());
}

}  // namespace
}  // namespace gpufs::testing

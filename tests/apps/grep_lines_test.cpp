// gpufs::grep::count_lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "apps/grep_oracle.hpp"
#include "apps/grep_random_text.hpp"
#include "grep/part_lines.hpp"
#include "grep/window.cuh"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

void expect_counts(grep_world& world, const std::map<std::string, std::string>& files,
                   const std::set<std::string>& words, const std::string& what) {
  std::vector<grep::file_item> list;
  std::uint64_t bytes = 0;
  for (const auto& [path, text] : files) {
    world.backend().write(path, text);
    list.push_back({path, text.size()});
    bytes += text.size();
  }
  const grep::line_result r =
      grep::count_lines(world.m(), grep::dictionary({words.begin(), words.end()}), list);
  EXPECT_TRUE(r.failures.empty());
  EXPECT_EQ(r.files, files.size());
  EXPECT_EQ(r.bytes, bytes);
  ASSERT_EQ(r.lines.size(), files.size());
  for (std::size_t k = 0; k < list.size(); ++k)
    EXPECT_EQ(r.lines[k], count_lines(files.at(list[k].path), words))
        << what << ": " << list[k].path;
}

// Every text of a few symbols, cut into three parts at every two places.
TEST(GrepLines, PartsAddUpToTheWhole) {
  const auto lines_of = [](const std::string& text) {  // 'x' is a match, '/' ends a line
    grep::part_lines all;
    for (const char c : text) all.append({c == 'x' ? 1u : 0u, c == 'x', c == 'x', c == '/'});
    return all;
  };
  constexpr std::size_t length = 6;
  for (std::size_t number = 0; number < 729; ++number) {
    std::string text;
    for (std::size_t k = 0, rest = number; k < length; ++k, rest /= 3) text += "x/."[rest % 3];
    std::uint64_t count = 0;
    for (std::size_t at = 0; at < length;) {
      const std::size_t end = std::min(text.find('/', at), length);
      count += text.substr(at, end - at).find('x') != std::string::npos ? 1 : 0;
      at = end + 1;
    }
    const grep::part_lines whole = lines_of(text);
    ASSERT_EQ(whole.count, count) << text;
    ASSERT_EQ(grep::part_lines::unpack(whole.pack()), whole);
    for (std::size_t a = 0; a <= length; ++a) {
      for (std::size_t b = a; b <= length; ++b) {
        grep::part_lines sum = lines_of(text.substr(0, a));
        sum.append(lines_of(text.substr(a, b - a)));
        sum.append(lines_of(text.substr(b)));
        ASSERT_EQ(sum, whole) << text << " at " << a << " and " << b;
      }
    }
  }
}

TEST(GrepLines, CountsAsANaiveSearchDoes) {
  grep_world world;
  for (std::uint64_t seed = 1; seed <= (is_sanitized ? 4 : 24) && !::testing::Test::HasFailure();
       ++seed) {
    random_text random(seed);
    std::map<std::string, std::string> files;
    std::set<std::string> words;
    const std::size_t count = 1 + random.below(8);
    for (std::size_t f = 0; f < count; ++f) {
      std::string& text = files["f" + std::to_string(f)] = random.file();
      for (std::size_t w = random.below(4); w != 0; --w) words.insert(random.word(text));
    }
    words.erase("");
    words.insert("zzz");  // a search without words reads nothing
    expect_counts(world, files, words, "seed " + std::to_string(seed));
  }
}

// A line with two matches, and one that ends between them, at every place of a window's end.
TEST(GrepLines, FollowsLinesAcrossWindows) {
  grep_world world;
  std::map<std::string, std::string> files;
  const std::size_t window = grep::window_bytes - grep::lookahead_bytes;
  for (std::size_t shift = 0; shift < 600; shift += is_sanitized ? 37 : 5) {
    const std::size_t at = window - 300 + shift;
    for (const std::string& between :
         {std::string(" "), std::string("\n"), std::string(1, 0), std::string("\n\n")}) {
      std::string text(at, ' ');
      text += "needle" + between + "needle" + repeat(" ", 9000) + "needle\nneedle";
      files["f" + std::to_string(shift) + "-" + std::to_string(between.size()) +
            std::to_string(between[0])] = text;
    }
  }
  expect_counts(world, files, {"needle", "other"}, "windows");
}

TEST(GrepLines, FollowsLinesAcrossParts) {
  grep_world world;
  const std::string blank = repeat(" ", 500'000);
  const std::map<std::string, std::string> files = {
      {"many", repeat("foo bar\nbar\n", 100'000)},
      {"one", repeat("foo bar ", 100'000)},
      {"none", repeat("bar\n", 300'000)},
      {"far", "foo" + blank + "foo\n" + blank + "foo" + blank},
      {"ends", "foo\n" + blank + "\nfoo"},
      {"nuls", repeat(std::string("foo\0bar\n\0foo", 12), 40'000)},
      {"empty", ""}};
  expect_counts(world, files, {"foo", "a-a"}, "parts");
  expect_counts(world, files, {"foo", "bar"}, "parts");
  expect_counts(world, files, {" "}, "parts");
}

TEST(GrepLines, IgnoresTheCase) {
  grep_world world;
  world.backend().write("f", "Foo\nfoo FOO\nfoos\nf\n");
  const grep::dictionary words({"fOO"}, grep::letter_case::ignored);
  EXPECT_EQ(grep::count_lines(world.m(), words, {{"f", 20}}).lines,
            (std::vector<std::uint64_t>{2}));
}

TEST(GrepLines, LeavesOutWhatFails) {
  grep_world world;
  world.backend().write("f", "foo\n");
  const grep::line_result r =
      grep::count_lines(world.m(), grep::dictionary({"foo"}), {{"missing", 9}, {"f", 4}});
  ASSERT_EQ(r.failures.size(), 1u);
  EXPECT_EQ(r.failures[0].file, 0u);
  EXPECT_EQ(r.failures[0].error, ENOENT);
  EXPECT_EQ(r.lines, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(r.files, 1u);
}

TEST(GrepLines, CountsNothingInNothing) {
  grep_world world;
  EXPECT_TRUE(grep::count_lines(world.m(), grep::dictionary({"foo"}), {}).lines.empty());
  EXPECT_EQ(grep::count_lines(world.m(), grep::dictionary({}), {{"f", 1}}).lines,
            (std::vector<std::uint64_t>{0}));
}

}  // namespace
}  // namespace gpufs::testing

// Searching text by groups of every kind, against std::string; and taking it apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "gpufs/text/token.cuh"
#include "support/device.hpp"

namespace gpufs::testing {

struct find_case {
  std::uint64_t begin, bytes;  // of the text
  std::uint64_t first, last, inside, outside;
};

// Looks for 'x', and for what is in the set and what is not.
template <class Group>
struct find_kernel {
  const char* text;
  find_case* cases;
  std::uint64_t count;

  GPUFS_HD void operator()(const mount_ref&) const {
    const Group g{};
    for (std::uint64_t i = Group::grid_rank(); i < count; i += Group::grid_size()) {
      find_case c = cases[i];
      const text_span part{text + c.begin, c.bytes};
      const byte_set set("xz\xff");
      c.first = find_byte(g, part, 'x');
      c.last = find_last_byte(g, part, 'x');
      c.inside = find_of_set(g, part, set, true);
      c.outside = find_of_set(g, part, set, false);
      // By one of the last members: so all have to have the answer.
      if (g.rank() == g.size() - 1) cases[i] = c;
    }
  }
};

template <class Group>
class group_find : public ::testing::Test {};
using group_types = ::testing::Types<thread_group, warp_group, block_group>;
TYPED_TEST_SUITE(group_find, group_types);

TYPED_TEST(group_find, FindsTheFirstAndTheLast) {
  mount m(base_options());
  std::mt19937_64 random(1);
  // Neighbours of 'x' in value, and bytes that differ in the highest bit, are those that tricks
  // with words confuse.
  const std::string alphabet("xyw\xf8z\xff\0 ", 8);
  std::string text(6000, 'y');
  for (std::size_t i = 0; i < 1200; ++i) text[i] = alphabet[random() % 8];
  for (std::size_t i = 1200; i < 2400; ++i)
    text[i] = random() % 64 == 0 ? alphabet[random() % 8] : 'x';
  text[4000] = 'x';
  std::vector<find_case> cases;
  for (std::uint64_t k = 0; k < 2000; ++k) {
    const std::uint64_t begin = random() % text.size();
    const std::uint64_t most = text.size() - begin;
    cases.push_back({begin,
                     random() % 2 == 0 ? std::min(most, random() % 40) : random() % (most + 1), 0,
                     0, 0, 0});
  }
  const device_array<char> pool(m, std::vector<char>(text.begin(), text.end()));
  const device_array<find_case> work(m, cases);
  launch(m, {8, 96, 0, nullptr}, find_kernel<TypeParam>{pool.data(), work.data(), cases.size()});
  for (const find_case& got : work.download()) {
    const std::string part = text.substr(got.begin, got.bytes);
    ASSERT_EQ(got.first, part.find('x')) << got.begin << ", " << got.bytes << " bytes";
    ASSERT_EQ(got.last, part.rfind('x')) << got.begin << ", " << got.bytes << " bytes";
    ASSERT_EQ(got.inside, part.find_first_of("xz\xff"))
        << got.begin << ", " << got.bytes << " bytes";
    ASSERT_EQ(got.outside, part.find_first_not_of("xz\xff"))
        << got.begin << ", " << got.bytes << " bytes";
  }
}

namespace {

TEST(Find, NothingInNothing) {
  EXPECT_EQ(find_byte(this_thread(), {nullptr, 0}, 'a'), not_found);
  EXPECT_EQ(find_last_byte(this_thread(), {nullptr, 0}, 'a'), not_found);
  EXPECT_EQ(find_of_set(this_thread(), {nullptr, 0}, byte_set("a"), false), not_found);
}

std::vector<std::string> tokens(const std::string& text, const char* delimiters) {
  std::vector<std::string> all;
  text_span rest{text.data(), text.size()};
  for (text_span token = next_token(rest, delimiters); token.bytes != 0;
       token = next_token(rest, delimiters))
    all.emplace_back(token.data, token.bytes);
  EXPECT_EQ(rest.bytes, 0u);
  return all;
}

TEST(Token, AreTheSameAsStrtokGives) {
  static const char* const sets[] = {",; \n", "a", "", "\xe9,"};
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (std::size_t n = random() % 40; n != 0; --n) text += "ab,; \n\xe9"[random() % 7];
    const char* const delimiters = sets[random() % 4];
    std::vector<std::string> wanted;
    std::string copy = text;
    char* rest = copy.data();
    while (const char* token = strtok_r(rest, delimiters, &rest)) wanted.emplace_back(token);
    ASSERT_EQ(tokens(text, delimiters), wanted) << text;
  }
}

TEST(Token, TextNeedsNoZero) {
  const char text[] = {'a', ' ', 'b', 'c', ' ', 'd'};
  text_span rest{text, 4};
  EXPECT_EQ(next_token(rest, " ").bytes, 1u);
  EXPECT_EQ(next_token(rest, " ").bytes, 2u);
  EXPECT_EQ(next_token(rest, " ").bytes, 0u);
}

}  // namespace
}  // namespace gpufs::testing

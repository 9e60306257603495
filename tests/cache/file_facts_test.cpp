// How a handle lies beside the tags of what a descriptor leads to.
#include <gtest/gtest.h>

#include "gpufs/cache/arena.cuh"

namespace gpufs::testing {
namespace {

constexpr std::uint32_t largest_tag = (1u << file_facts::tag_bits) - 1;
constexpr std::uint32_t largest_mode = (1u << file_facts::mode_bits) - 1;

void expect_kept(std::uint32_t generation, std::uint64_t handle, std::uint32_t mode) {
  file_facts facts{};
  facts.set_tags(generation, handle, mode);
  const std::uint64_t first = facts.tag_handle.value, second = facts.tag_mode.value;
  EXPECT_EQ(file_facts::tag_in(first), generation & largest_tag);
  EXPECT_EQ(file_facts::tag_in(second), generation & largest_tag);
  EXPECT_EQ(file_facts::handle_in(first, second), handle);
  EXPECT_EQ(file_facts::mode_in(second), mode);
}

TEST(file_facts, each_bit_is_kept_and_changes_no_other) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    for (const std::uint32_t tag : {0u, largest_tag}) {
      for (const std::uint32_t mode : {0u, largest_mode}) {
        expect_kept(tag, one, mode);
        expect_kept(tag, ~one, mode);
      }
    }
    if (one <= largest_tag) {
      expect_kept(static_cast<std::uint32_t>(one), 0, 0);
      expect_kept(static_cast<std::uint32_t>(~one), ~std::uint64_t{0}, largest_mode);
    }
    if (one <= largest_mode) {
      expect_kept(0, 0, static_cast<std::uint32_t>(one));
      expect_kept(largest_tag, ~std::uint64_t{0}, largest_mode - static_cast<std::uint32_t>(one));
    }
  }
}

// Generations are odd while a record is open.
TEST(file_facts, generations_that_follow_each_other_have_different_tags) {
  for (const std::uint32_t generation :
       {0u, largest_tag - 1, largest_tag, 0x7fffffffu, 0xfffffffeu, 0xffffffffu}) {
    EXPECT_NE(file_facts::tag_of(generation), file_facts::tag_of(generation + 1));
    EXPECT_NE(file_facts::tag_of(generation), file_facts::tag_of(generation + 2));
    EXPECT_NE(file_facts::tag_of(generation), file_facts::tag_of(generation + largest_tag));
    EXPECT_EQ(file_facts::tag_of(generation) % 2, generation % 2);
  }
}

TEST(file_facts, all_that_a_file_may_allow_has_room) {
  expect_kept(1, 2, 0xffffu | access_read | access_write | access_append | access_once);
}

}  // namespace
}  // namespace gpufs::testing

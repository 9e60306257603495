// Numbers in parts, as matrix units take them (tile/numbers.cuh).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tile/numbers.cuh"

namespace gpufs {
namespace {

using limits_of_float = std::numeric_limits<float>;

// What the parts of a number sum up to; exactly, as each has eight digits.
template <int Parts>
double sum_of_parts(float x, bool is_high) {
  const float two[2] = {is_high ? -3.0F : x, is_high ? x : 7.0F};
  std::uint32_t words[Parts][1];
  split_all(two, words);
  double sum = 0;
  for (const auto& word : words)
    sum += static_cast<double>(float_of(is_high ? word[0] & 0xffff'0000 : word[0] << 16));
  return sum;
}

template <int Parts>
void expect_close(float x, double relative) {
  for (const bool is_high : {false, true}) {
    const double whole = static_cast<double>(x);
    ASSERT_LE(std::abs(sum_of_parts<Parts>(x, is_high) - whole), relative * std::abs(whole)) << x;
  }
}

TEST(TileNumbers, PartsSumUpToTheNumber) {
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float x = float_of(static_cast<std::uint32_t>(random()));
    // Where the last of three parts is a normal number.
    if (!is_finite(x) || std::abs(x) < 0x1p-102F) continue;
    if (std::abs(x) < 0x1.fep127F) expect_close<1>(x, 0x1p-8);
    expect_close<2>(x, 0x1p-16);
    expect_close<3>(x, 0);
  }
  for (const float x : {0.0F, 1.0F, limits_of_float::min(), 0x1.fffffep0F, 0x1.00ffffp5F})
    expect_close<2>(x, 0x1p-16);
}

TEST(TileNumbers, TheLargestStayWhatTheyAre) {
  for (const float x : {limits_of_float::max(), 0x1.ffp127F, 0x1.fefffep127F, 0x1.fep127F}) {
    for (const float signed_x : {x, -x}) {
      expect_close<2>(signed_x, 0x1p-16);
      expect_close<3>(signed_x, 0);
    }
  }
  EXPECT_FALSE(std::isfinite(sum_of_parts<1>(limits_of_float::max(), false)))
      << "as any that is rounded up";
}

TEST(TileNumbers, WhatIsNotFiniteStaysSo) {
  for (const bool is_high : {false, true}) {
    for (const float sign : {1.0F, -1.0F}) {
      const float x = sign * limits_of_float::infinity();
      for (const double sum :
           {sum_of_parts<1>(x, is_high), sum_of_parts<2>(x, is_high), sum_of_parts<3>(x, is_high)})
        EXPECT_EQ(sum, static_cast<double>(x));
    }
    EXPECT_TRUE(std::isnan(sum_of_parts<1>(limits_of_float::quiet_NaN(), is_high)));
    EXPECT_TRUE(std::isnan(sum_of_parts<3>(limits_of_float::quiet_NaN(), is_high)));
  }
}

TEST(TileNumbers, OfBfloat16TheBitsAreTaken) {
  const bfloat16 numbers[4] = {{0x1234}, {0xfedc}, {0x7f80}, {0x0001}};
  std::uint32_t words[1][2];
  split_all(numbers, words);
  EXPECT_EQ(words[0][0], 0xfedc'1234u);
  EXPECT_EQ(words[0][1], 0x0001'7f80u);
}

}  // namespace
}  // namespace gpufs

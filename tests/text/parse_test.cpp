// parse_number and parse_integer against the C library's strtod and strtoll, in device code.
#include <errno.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "gpufs/text/parse_integer.cuh"
#include "gpufs/text/parse_number.cuh"
#include "support/device.hpp"
#include "support/seeds.hpp"
#include "text/random_numbers.hpp"

namespace gpufs::testing {

struct parsed_case {
  std::uint64_t begin, bytes;  // of the text
  std::int64_t result;
  double value;
};

struct parse_kernel {
  const char* texts;
  parsed_case* cases;
  std::uint64_t count;

  GPUFS_HD void operator()(const mount_ref&) const {
    for (std::uint64_t i = thread_group::grid_rank(); i < count; i += thread_group::grid_size())
      cases[i].result = parse_number({texts + cases[i].begin, cases[i].bytes}, cases[i].value);
  }
};

namespace {

// The number half-way between a double and the next, or one that differs from it only far behind.
std::string half_way(double value, random_numbers& random) {
  const double next = std::nextafter(value, INFINITY);
  if (!std::isfinite(value) || !std::isfinite(next)) return "1";
  // A long double holds the sum of two neighbours.
  std::array<char, 1300> digits{};
  std::snprintf(digits.data(), digits.size(), "%.800Le",
                (static_cast<long double>(value) + static_cast<long double>(next)) / 2);
  std::string text = digits.data();
  const std::size_t e = text.find('e');
  std::size_t last = text.find_last_not_of('0', e - 1);
  if (random.below(3) == 0) last = e - 1;
  std::string mantissa = text.substr(0, last + 1);
  if (const std::size_t nudge = random.below(3); nudge == 1) mantissa += "00001";
  else if (nudge == 2 && mantissa.back() > '0') --mantissa.back();
  return mantissa + text.substr(e);
}

std::string text_of_numbers(random_numbers& random) {
  std::array<char, 1300> text{};
  const double value = random.number();
  const int precision = static_cast<int>(random.below(30));
  switch (random.below(8)) {
    case 0: std::snprintf(text.data(), text.size(), "%.17g", value); break;
    case 1: std::snprintf(text.data(), text.size(), "%.*e", precision, value); break;
    case 2: std::snprintf(text.data(), text.size(), "%.*f", precision, value); break;
    case 3: std::snprintf(text.data(), text.size(), " \t%+.*gE", precision, value); break;
    case 4: std::snprintf(text.data(), text.size(), "%.900f", value); break;
    case 5:
    case 6: return half_way(value, random);
    default: {
      std::string any;
      for (std::size_t n = 1 + random.below(20); n != 0; --n)
        any += "0123456789.e-+ 00infaty"[random.below(23)];
      return any;
    }
  }
  return text.data();
}

TEST(Parse, NumbersAreTheSameAsStrtodGives) {
  mount m(base_options());
  constexpr std::size_t count = is_sanitized ? 500 : 4000;
  for (const std::uint64_t seed : seeds()) {
    random_numbers random(seed);
    std::string texts;
    std::vector<parsed_case> cases;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string text = text_of_numbers(random);
      cases.push_back({texts.size(), text.size(), 0, 0});
      texts += text + '\0';
    }
    const device_array<char> pool(m, std::vector<char>(texts.begin(), texts.end()));
    const device_array<parsed_case> work(m, cases);
    launch(m, {8, 128, 0, nullptr}, parse_kernel{pool.data(), work.data(), count});
    for (const parsed_case& got : work.download()) {
      const char* const text = texts.c_str() + got.begin;
      char* end = nullptr;
      const double wanted = std::strtod(text, &end);
      std::int64_t result = end == text ? -EINVAL : end - text;
      if (std::isinf(wanted) &&
          std::string_view(text, static_cast<std::size_t>(end - text)).find_first_of("iI") ==
              std::string::npos)
        result = -ERANGE;
      ASSERT_EQ(got.result, result) << "seed " << seed << ": " << text;
      if (result == -EINVAL) continue;
      if (std::isnan(wanted)) ASSERT_TRUE(std::isnan(got.value)) << text;
      else ASSERT_EQ(got.value, wanted) << "seed " << seed << ": " << text;
      ASSERT_EQ(std::signbit(got.value), std::signbit(wanted)) << text;
    }
  }
}

void expect_number(const std::string& text, std::int64_t result, double value) {
  double got = 77;
  EXPECT_EQ(parse_number({text.data(), text.size()}, got), result) << text;
  EXPECT_EQ(got, value) << text;
}

TEST(Parse, NumbersAtTheEdges) {
  const std::string zeros(2000, '0');
  expect_number("1" + zeros + "e-2000", 2007, 1);
  expect_number("0." + zeros + "1e2001", 2008, 1);
  expect_number("0" + zeros + "." + zeros + "e99999999999999999999", 4023, 0);
  expect_number("1e-99999999999999999999", 23, 0);
  expect_number("1e99999999999999999999", -ERANGE, INFINITY);
  expect_number("-1.7976931348623159e308", -ERANGE, -INFINITY);
  expect_number("1.7976931348623158e308", 22, 1.7976931348623157e308);
  expect_number("2.4703282292062327e-324", 23, 0);
  expect_number("2.4703282292062328e-324", 23, 5e-324);
  expect_number("12e", 2, 12);
  expect_number("12e+", 2, 12);
  expect_number("1.2.3", 3, 1.2);
  expect_number(".5", 2, 0.5);
  expect_number("5.", 2, 5);
  expect_number("-inFinity and", 9, -INFINITY);
  expect_number("infinit", 3, INFINITY);
  expect_number("0x10", 1, 0);
  for (const char* nothing : {"", " ", "-", ".", "e5", "-.e1", "in", "x"})
    expect_number(nothing, -EINVAL, 77);
}

template <class T>
void expect_integer(const std::string& text, std::int64_t result, T value,
                    std::uint32_t base = 10) {
  T got = 77;
  EXPECT_EQ(parse_integer(text_span{text.data(), text.size()}, got, base), result) << text;
  EXPECT_EQ(got, value) << text;
}

TEST(Parse, IntegersOfAnyBase) {
  expect_integer(" \n-42x", 5, -42);
  expect_integer("+7", 2, 7u);
  expect_integer("Zz", 2, 35 * 36 + 35, 36);
  expect_integer("1012", 3, 5, 2);
  expect_integer("0x1F", 4, 31, 16);
  expect_integer("1f", 2, 31, 16);
  expect_integer("0x1F", 4, 31, 0);
  expect_integer("-017", 4, -15, 0);
  expect_integer("190", 3, 190, 0);
  expect_integer("0x", 1, 0, 0);
  expect_integer("0xg", 1, 0, 16);
  expect_integer("08", 1, 0, 0);
  for (const char* nothing : {"", " ", "-", "+-1", "x", "- 1"})
    expect_integer(nothing, -EINVAL, 77);
  expect_integer("1", -EINVAL, 77, 1);
  expect_integer("1", -EINVAL, 77, 37);
}

TEST(Parse, IntegersThatTheTypeDoesNotHold) {
  using std::numeric_limits;
  expect_integer<std::int8_t>("127", 3, 127);
  expect_integer<std::int8_t>("128", -ERANGE, 127);
  expect_integer<std::int8_t>("-128", 4, -128);
  expect_integer<std::int8_t>("-129", -ERANGE, -128);
  expect_integer<std::uint8_t>("256", -ERANGE, 255);
  expect_integer<std::uint32_t>("-1", -ERANGE, 0);
  expect_integer<std::uint32_t>("-0", 2, 0);
  expect_integer<std::uint64_t>("18446744073709551615", 20, ~std::uint64_t{0});
  expect_integer<std::uint64_t>("18446744073709551616", -ERANGE, ~std::uint64_t{0});
  expect_integer<std::int64_t>("9223372036854775808", -ERANGE, numeric_limits<std::int64_t>::max());
  expect_integer<std::int64_t>("-9223372036854775808", 20, numeric_limits<std::int64_t>::min());
  expect_integer<std::int64_t>("-" + std::string(100, '9'), -ERANGE,
                               numeric_limits<std::int64_t>::min());
}

TEST(Parse, RandomIntegersAreTheSameAsStrtollGives) {
  random_numbers random(1);
  for (int i = 0; i < 100'000; ++i) {
    std::string text;
    for (std::size_t n = random.below(24); n != 0; --n)
      text += "0123456789-+ xXafz9"[random.below(19)];
    const int base = static_cast<int>(random.below(37));
    if (base == 1) continue;
    char* end = nullptr;
    errno = 0;
    const long long wanted = std::strtoll(text.c_str(), &end, base);
    const std::int64_t result = errno == ERANGE       ? -ERANGE
                                : end == text.c_str() ? -EINVAL
                                                      : end - text.c_str();
    long long got = 0;
    ASSERT_EQ(
        parse_integer(text_span{text.data(), text.size()}, got, static_cast<std::uint32_t>(base)),
        result)
        << '"' << text << "\", base " << base;
    ASSERT_EQ(got, wanted) << text;
  }
}

}  // namespace
}  // namespace gpufs::testing

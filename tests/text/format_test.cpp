// format_text against the C library's snprintf, in device code.
#include <errno.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "gpufs/text/format.cuh"
#include "support/device.hpp"
#include "support/seeds.hpp"
#include "text/random_numbers.hpp"

namespace gpufs::testing {

struct format_case {
  enum kind_type : std::uint32_t { number, wide, narrow } kind;
  char format[28];
  double value;
  std::int64_t integer;
};

// Each thread carries out its share of the cases, each with a row of its own.
struct format_kernel {
  static constexpr std::uint64_t row_bytes = 400;
  const format_case* cases;
  std::uint64_t count;
  char* rows;
  std::int64_t* results;

  GPUFS_HD void operator()(const mount_ref&) const {
    const thread_group me;
    for (std::uint64_t i = thread_group::grid_rank(); i < count; i += thread_group::grid_size()) {
      char* const row = rows + i * row_bytes;
      const format_case& c = cases[i];
      if (c.kind == format_case::number)
        results[i] = format_text(me, row, row_bytes, c.format, c.value);
      if (c.kind == format_case::wide)
        results[i] = format_text(me, row, row_bytes, c.format, c.integer);
      if (c.kind == format_case::narrow)
        results[i] =
            format_text(me, row, row_bytes, c.format, static_cast<std::int32_t>(c.integer));
    }
  }
};

namespace {

std::string printed(const char* format, auto... arguments) {
  std::array<char, 4096> text{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int bytes = std::snprintf(text.data(), text.size(), format, arguments...);
#pragma GCC diagnostic pop
  return std::string(text.data(), static_cast<std::size_t>(bytes));
}

// %#g of what is rounded up to a power of ten that needs an exponent: glibc 2.36 forgets the zeros
// ("1.e+06"), the standard has them.
std::string expected_general(const format_case& c) {
  const std::string format = c.format;
  const std::string usual = printed(c.format, c.value);
  if (format.find('#') == std::string::npos || (format.back() | 0x20) != 'g' ||
      !std::isfinite(c.value))
    return usual;
  const std::size_t point = format.find('.');
  int precision = point == std::string::npos ? 6 : std::atoi(format.c_str() + point + 1);
  if (precision == 0) precision = 1;
  const std::string scientific = printed("%.*e", precision - 1, c.value);
  if (std::atoi(scientific.c_str() + scientific.find('e') + 1) != precision) return usual;
  const std::string front =
      format.substr(0, point == std::string::npos ? format.size() - 1 : point);
  return printed((front + ".*" + (format.back() == 'g' ? "e" : "E")).c_str(), precision - 1,
                 c.value);
}

std::string expected(const format_case& c) {
  if (c.kind == format_case::number) return expected_general(c);
  if (c.kind == format_case::narrow) return printed(c.format, static_cast<std::int32_t>(c.integer));
  return printed(c.format, static_cast<long long>(c.integer));
}

format_case random_case(random_numbers& random) {
  static const char* const flags[] = {"",  "",    "-",  "0",  "+",  " ",
                                      "#", "-0+", "#0", "+#", "0 ", "- #"};
  format_case c{};
  std::string format = "%";
  format += flags[random.below(std::size(flags))];
  if (random.below(2) == 0) format += std::to_string(1 + random.below(45));
  if (random.below(3) != 0)
    format += "." + (random.below(8) == 0 ? std::string() : std::to_string(random.below(26)));
  c.kind = static_cast<format_case::kind_type>(random.below(4) == 0 ? 1 + random.below(2) : 0);
  if (c.kind == format_case::wide) format += "ll";
  format += c.kind == format_case::number ? "feEgGF"[random.below(6)] : "diuxXo"[random.below(6)];
  format.copy(c.format, sizeof c.format - 1);
  c.value = random.number();
  c.integer = static_cast<std::int64_t>(random.bits()) >> random.below(64);
  return c;
}

std::int64_t format_here(std::string& text, const char* format, const auto&... arguments) {
  std::array<char, 100> buffer{};
  const std::int64_t result =
      format_text(this_thread(), buffer.data(), buffer.size(), format, arguments...);
  text = buffer.data();
  return result;
}

void expect_text(const std::string& wanted, const char* format, const auto&... arguments) {
  std::string text;
  EXPECT_EQ(format_here(text, format, arguments...), static_cast<std::int64_t>(wanted.size()))
      << format;
  EXPECT_EQ(text, wanted) << format;
}

void expect_refused(const char* format, const auto&... arguments) {
  std::string text;
  EXPECT_EQ(format_here(text, format, arguments...), -EINVAL) << format;
}

TEST(Format, NumbersAreTheSameAsSnprintfGives) {
  mount m(base_options());
  constexpr std::size_t count = is_sanitized ? 500 : 4000;
  const device_array<char> rows(m, count * format_kernel::row_bytes);
  const device_array<std::int64_t> results(m, count);
  for (const std::uint64_t seed : seeds()) {
    random_numbers random(seed);
    std::vector<format_case> cases(count);
    for (format_case& c : cases) c = random_case(random);
    const device_array<format_case> uploaded(m, cases);
    launch(m, {8, 128, 0, nullptr},
           format_kernel{uploaded.data(), count, rows.data(), results.data()});
    const std::vector<std::int64_t> lengths = results.download();
    const std::vector<char> texts = rows.download();
    for (std::size_t i = 0; i < count; ++i) {
      const std::string wanted = expected(cases[i]);
      const bool fits = wanted.size() < format_kernel::row_bytes;
      ASSERT_EQ(lengths[i], fits ? static_cast<std::int64_t>(wanted.size()) : -EOVERFLOW)
          << "seed " << seed << ", " << cases[i].format << " of " << cases[i].value << " or "
          << cases[i].integer;
      if (!fits) continue;
      ASSERT_EQ(std::string(&texts[i * format_kernel::row_bytes]), wanted)
          << "seed " << seed << ", " << cases[i].format << " of " << cases[i].value << " or "
          << cases[i].integer;
    }
  }
}

TEST(Format, AllDigitsOfTheLargestAndTheSmallestNumber) {
  std::array<char, 2000> text{};
  for (const double value : {5e-324, -1.7976931348623157e308, 2.2250738585072009e-308}) {
    for (const char* format :
         {"%.1074f", "%.1100f", "%.770e", "%.0f", "%.1073f", "%.800g", "%.400f", "%#.1200g"}) {
      const std::string wanted = printed(format, value);
      EXPECT_EQ(format_text(this_thread(), text.data(), text.size(), format, value),
                static_cast<std::int64_t>(wanted.size()));
      EXPECT_EQ(std::string(text.data()), wanted) << format;
    }
  }
}

TEST(Format, TheTypeOfTheArgumentDecides) {
  const enum class color : std::uint8_t { blue = 200 } color = color::blue;
  expect_text("4000000000 -1 18446744073709551615", "%d %lld %hhu", 4000000000u, -1,
              ~std::uint64_t{0});
  expect_text("ff ffff ffffffff 1 200", "%x %x %x %d %d", static_cast<signed char>(-1), short{-1},
              -1, true, color);
  expect_text("97 a b 1.5 100%", "%d %c %c %g %.0f%%", 'a', 'a', 98, 1.5f, 99.9);
}

TEST(Format, TextAndPointers) {
  const char* const null = nullptr;
  char writable[] = "w";
  expect_text("abc|  abc|abc  |ab|  a", "%s|%5s|%-5s|%.2s|%3.1s", "abc", "abc", "abc", "abc",
              "abc");
  expect_text("bc|b|w", "%s|%.1s|%s", text_span{"abcd" + 1, 2}, text_span{"abcd" + 1, 2}, writable);
  expect_text("(null)||  (nil)", "%s|%.3s|%7p", null, null, nullptr);
  expect_text("0x1f0| 0x1f0", "%p|%6p", reinterpret_cast<void*>(0x1f0),
              reinterpret_cast<const char*>(0x1f0));
  expect_text("", "");
}

TEST(Format, WidthAndPrecisionFromArguments) {
  expect_text("   7|7   |+07.5|7.50", "%*d|%*d|%+0*.*f|%.*f", 4, 7, -4, 7, 5, 1, 7.5, 2, 7.5);
  expect_text("7.500000|  ab", "%.*f|%*.*s", -1, 7.5, 4, 2, "abc");
}

TEST(Format, ConversionsThatDoNotFitAreRefused) {
  expect_refused("%d");
  expect_refused("%d", 1, 2);
  expect_refused("no conversion", 1);
  expect_refused("%d", 1.0);
  expect_refused("%f", 1);
  expect_refused("%s", 1);
  expect_refused("%s", nullptr);
  expect_refused("%c", "a");
  expect_refused("%p", 1);
  expect_refused("%*d", 1.0, 1);
  expect_refused("%*d", 1);
  expect_refused("%n", 1);
  expect_refused("%a", 1.0);
  expect_refused("%D", 1);
  expect_refused("%5", 1);
  expect_refused("%");
  expect_refused("%1$d", 1);
}

TEST(Format, TextThatDoesNotFitIsAnError) {
  std::array<char, 8> buffer{};
  const thread_group me;
  EXPECT_EQ(format_text(me, buffer.data(), 6, "%s", "12345"), 5);
  EXPECT_EQ(format_text(me, buffer.data(), 5, "%s", "12345"), -EOVERFLOW);
  EXPECT_EQ(buffer[5], 0) << "nothing behind the buffer was written";
  EXPECT_EQ(format_text(me, buffer.data(), 1, ""), 0);
  EXPECT_EQ(format_text(me, buffer.data(), 0, ""), -EOVERFLOW);
  for (const char* format : {"%.2147483647f", "%2147483647f", "%99999999999999999999f",
                             "%-2147483648g", "%.2147483647e"})
    EXPECT_EQ(format_text(me, buffer.data(), 8, format, 1.5), -EOVERFLOW) << format;
  EXPECT_EQ(format_text(me, nullptr, 8, ""), -EFAULT);
  EXPECT_EQ(format_text(me, buffer.data(), 8, nullptr), -EFAULT);
}

}  // namespace
}  // namespace gpufs::testing

// Converts text to integers.
#pragma once

#include "gpufs/text/span.cuh"

namespace gpufs {

namespace detail {

struct parsed_integer {
  std::uint64_t magnitude;
  std::uint64_t bytes;  // bytes parsed; 0: there is no integer
  bool negative;
  bool overflows;  // does not fit in 64 bits
};

// Returns the value of a digit. 36: `c` is no digit of any base.
GPUFS_HD constexpr std::uint32_t value_of_digit(char c) {
  if (is_digit(c)) return static_cast<std::uint32_t>(c - '0');
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'z' ? static_cast<std::uint32_t>(lower - 'a') + 10 : 36;
}

GPUFS_HD GPUFS_OUT_OF_LINE inline parsed_integer parse_magnitude(text_span text,
                                                                 std::uint32_t base) {
  std::uint64_t at = 0;
  parsed_integer number{0, 0, false, false};
  while (at < text.bytes && is_space(text.data[at])) ++at;
  if (at < text.bytes && (text.data[at] == '-' || text.data[at] == '+'))
    number.negative = text.data[at++] == '-';
  const auto digit_at = [&](std::uint64_t i) {
    return i < text.bytes ? value_of_digit(text.data[i]) : 36;
  };
  // A prefix needs a digit after it: "0x" alone is a zero.
  const bool hexadecimal = digit_at(at) == 0 && at + 1 < text.bytes &&
                           (text.data[at + 1] | 0x20) == 'x' && digit_at(at + 2) < 16 &&
                           (base == 0 || base == 16);
  if (base == 0) base = hexadecimal ? 16 : digit_at(at) == 0 ? 8 : 10;
  if (hexadecimal) at += 2;
  for (; digit_at(at) < base; number.bytes = ++at) {
    const std::uint64_t digit = digit_at(at);
    constexpr std::uint64_t largest = ~std::uint64_t{0};
    number.overflows = number.overflows || number.magnitude > (largest - digit) / base;
    if (!number.overflows) number.magnitude = number.magnitude * base + digit;
  }
  return number;
}

}  // namespace detail

// Parses an integer at the beginning of a text: white space, a sign, then digits of `base`, 2 to
// 36. Base 0 works as in C: a prefix 0x means 16, a prefix 0 means 8, else the base is 10. Base 16
// accepts 0x too. Like strtol(3). Returns the bytes parsed, > 0. Errors: -EINVAL if there is no
// integer, or `base` is invalid; -ERANGE if T cannot hold it. Then `value` is the nearest value of
// T, also for a negative number, where strtoul(3) wraps around. Each thread calls it for itself.
// Does not wait.
template <class T>
[[nodiscard]] GPUFS_HD std::int64_t parse_integer(text_span text, T& value,
                                                  std::uint32_t base = 10) {
  static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>, "an integer");
  if (base == 1 || base > 36) return -EINVAL;
  const detail::parsed_integer got = detail::parse_magnitude(text, base);
  if (got.bytes == 0) return -EINVAL;
  constexpr std::uint64_t largest =
      ~std::uint64_t{0} >> (64 - 8 * sizeof(T) + (std::is_signed_v<T> ? 1 : 0));
  const std::uint64_t most = !got.negative ? largest : std::is_signed_v<T> ? largest + 1 : 0;
  const bool fits = !got.overflows && got.magnitude <= most;
  const std::uint64_t magnitude = fits ? got.magnitude : most;
  value = static_cast<T>(got.negative ? ~magnitude + 1 : magnitude);
  return fits ? static_cast<std::int64_t>(got.bytes) : -ERANGE;
}

}  // namespace gpufs

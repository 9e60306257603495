// Converts text to floating-point numbers, correctly rounded.
#pragma once

#include "gpufs/text/decimal.cuh"
#include "gpufs/text/span.cuh"
#include "gpufs/text/words.cuh"

namespace gpufs {

namespace detail {

// The significant digits of a number in a text: at most `kept_max`, from the first digit that is
// not 0. After those it matters only whether another digit is not 0, because a number half-way
// between two doubles has at most 768 digits.
struct decimal_text {
  static constexpr std::uint32_t kept_max = 780;

  text_span digits;  // may contain a point, and zeros at both ends
  // digits of the number before the point, counted from the first that is not 0; may be negative
  std::int64_t scale;
  std::uint32_t kept;   // digits from the first that is not 0 to the last kept
  std::uint64_t first;  // offset in `digits` of the first that is not 0
  bool more;            // whether a digit that is not kept is not 0
};

GPUFS_HD inline double double_of_bits(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline constexpr std::uint64_t infinity_bits = 0x7ff0'0000'0000'0000ull;
inline constexpr std::uint64_t nan_bits = 0x7ff8'0000'0000'0000ull;

// Returns the bits of the double nearest to quotient * 2^-exponent, with ties to even. `more`: the
// number is a little greater. The quotient must have at least 55 bits.
GPUFS_HD inline std::uint64_t round_to_double(std::uint64_t quotient, std::int32_t exponent,
                                              bool more) {
  const auto highest = static_cast<std::int32_t>(highest_bit(quotient));
  constexpr std::int32_t least = -1022;  // exponent of the smallest normal number
  std::int32_t power = highest - exponent;
  std::int32_t drop = highest - 52;
  if (power < least) {
    drop += least - power;
    power = least;
  }
  if (drop > 63) return 0;
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  const std::uint64_t dropped = quotient & (half * 2 - 1);
  std::uint64_t kept = quotient >> drop;
  if (dropped > half || (dropped == half && (more || kept % 2 != 0))) ++kept;
  // The highest bit of a normal number is not stored. Adding it increments the exponent.
  const std::uint64_t bits = (static_cast<std::uint64_t>(power - least) << 52) + kept;
  return bits < infinity_bits ? bits : infinity_bits;
}

// Returns the bits of the double nearest to a number that is not 0. The number becomes a decimal
// with enough digits after the point to fill limbs. Then it is multiplied or divided by powers of
// two until its integer part has between 55 and 63 bits.
GPUFS_HD GPUFS_OUT_OF_LINE inline std::uint64_t nearest_double(const decimal_text& text) {
  if (text.scale > 309) return infinity_bits;
  if (text.scale < -323) return 0;  // below 10^-324, less than half of the smallest double
  const auto scale = static_cast<std::int32_t>(text.scale);
  // The power of ten of the last kept digit.
  const std::int32_t last = scale - static_cast<std::int32_t>(text.kept);
  const std::uint32_t limbs_behind_point =
      last < 0 ? (static_cast<std::uint32_t>(-last) + decimal::digits_of_limb - 1) /
                     decimal::digits_of_limb
               : 0;
  // Limbs: 780 digits down from 10^-323 need 123 limbs after the point. Three more hold the 63
  // bits.
  decimal number;
  std::int32_t place =
      scale + static_cast<std::int32_t>(limbs_behind_point * decimal::digits_of_limb);
  std::uint32_t taken = 0;
  for (std::uint64_t at = text.first; taken < text.kept; ++at) {
    if (text.digits.data[at] == '.') continue;
    const auto digit = static_cast<std::uint32_t>(text.digits.data[at] - '0');
    ++taken;
    number.set_digit(static_cast<std::uint32_t>(--place), digit);
  }
  // 10^scale < 2^whole_bits: 217706 / 65536 exceeds the binary logarithm of 10 by less than 4 *
  // 10^-6.
  const std::int32_t whole_bits = ((scale * 217'706) >> 16) + 2;
  const std::int32_t exponent = 63 - whole_bits;
  bool more = text.more;
  if (exponent >= 0) number.multiply_by_power_of_two(static_cast<std::uint32_t>(exponent));
  else more = number.divide_by_power_of_two(static_cast<std::uint32_t>(-exponent)) || more;
  more = more || number.has_digits_below(limbs_behind_point * decimal::digits_of_limb);
  std::uint64_t quotient = 0;
  for (std::uint32_t i = number.limbs(); i > limbs_behind_point; --i)
    quotient = quotient * decimal::base + number.limb(i - 1);
  return round_to_double(quotient, exponent, more);
}

// Parses digits, with a point among them, and an exponent, from `at` on. Returns the offset after
// them, or `at` if there is no digit.
GPUFS_HD inline std::uint64_t read_decimal(text_span text, std::uint64_t at, decimal_text& number) {
  number = {{text.data + at, 0}, 0, 0, 0, false};
  bool any = false, point = false, begun = false;
  std::uint64_t from_first = 0;  // digits from the first that is not 0
  std::uint64_t i = at;
  for (; i < text.bytes && (is_digit(text.data[i]) || (text.data[i] == '.' && !point)); ++i) {
    if (text.data[i] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (text.data[i] != '0' && !begun) {
      begun = true;
      number.first = i - at;
    }
    if (begun) {
      ++from_first;
      if (text.data[i] != '0' && from_first <= decimal_text::kept_max)
        number.kept = static_cast<std::uint32_t>(from_first);
      if (text.data[i] != '0' && from_first > decimal_text::kept_max) number.more = true;
    }
    if (point && !begun) --number.scale;
    if (!point && begun) ++number.scale;
  }
  if (!any) return at;
  number.digits.bytes = i - at;
  // An exponent needs a digit.
  std::uint64_t e = i;
  if (e < text.bytes && (text.data[e] | 0x20) == 'e') {
    ++e;
    bool negative = false;
    if (e < text.bytes && (text.data[e] == '-' || text.data[e] == '+'))
      negative = text.data[e++] == '-';
    std::int64_t exponent = 0;
    for (; e < text.bytes && is_digit(text.data[e]); i = ++e) {
      // Enough for any text: only a text of this many digits could compensate a larger exponent.
      constexpr std::int64_t enough = std::int64_t{1} << 56;
      if (exponent < enough) exponent = exponent * 10 + (text.data[e] - '0');
    }
    number.scale += negative ? -exponent : exponent;
  }
  return i;
}

// True if the text at `at` begins with `word`, ignoring case. `word` must be lower case.
GPUFS_HD inline bool begins_with(text_span text, std::uint64_t at, const char* word) {
  for (; *word != 0; ++word, ++at) {
    if (at >= text.bytes || (text.data[at] | 0x20) != *word) return false;
  }
  return true;
}

}  // namespace detail

// Parses a number at the beginning of a text: white space, a sign, then digits with a point and an
// exponent, or inf, infinity or nan. Like strtod(3) in the C locale, without hexadecimal numbers
// and nan(...). `value` is the nearest double, with ties to even, for any number of digits. Returns
// the bytes parsed, > 0. Errors: -EINVAL if there is no number; -ERANGE if it is too large, and
// then `value` is infinite. A number that is too small becomes the nearest denormal or zero,
// without an error. Each thread calls it for itself. Does not wait.
[[nodiscard]] GPUFS_HD inline std::int64_t parse_number(text_span text, double& value) {
  std::uint64_t at = 0;
  while (at < text.bytes && is_space(text.data[at])) ++at;
  bool negative = false;
  if (at < text.bytes && (text.data[at] == '-' || text.data[at] == '+'))
    negative = text.data[at++] == '-';
  std::uint64_t bits = 0;
  std::uint64_t end = at;
  bool too_large = false;
  if (detail::begins_with(text, at, "inf")) {
    bits = detail::infinity_bits;
    end += detail::begins_with(text, at, "infinity") ? 8 : 3;
  } else if (detail::begins_with(text, at, "nan")) {
    bits = detail::nan_bits;
    end += 3;
  } else {
    detail::decimal_text number;
    end = detail::read_decimal(text, at, number);
    if (end == at) return -EINVAL;
    if (number.kept != 0) bits = detail::nearest_double(number);
    too_large = bits == detail::infinity_bits;
  }
  value = detail::double_of_bits(negative ? bits | std::uint64_t{1} << 63 : bits);
  return too_large ? -ERANGE : static_cast<std::int64_t>(end);
}

}  // namespace gpufs

// Converts floating-point numbers to text, exactly: the digits of the number's binary value,
// rounded once, with ties to even.
#pragma once

#include "gpufs/text/decimal.cuh"
#include "gpufs/text/sink.cuh"
#include "gpufs/text/words.cuh"

namespace gpufs::detail {

// The absolute value of a finite double: `digits`, of which `behind_point` are after the decimal
// point. Some of these may lie above its highest digit.
struct exact_number {
  decimal digits;
  std::uint32_t behind_point;
};

GPUFS_HD inline void set_exact(exact_number& number, std::uint64_t bits) {
  const auto power = static_cast<std::int32_t>(bits >> 52 & 0x7ff);
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  if (power != 0) mantissa |= std::uint64_t{1} << 52;
  std::int32_t exponent = (power != 0 ? power : 1) - 1075;
  number.behind_point = 0;
  if (mantissa == 0) return number.digits.assign(0);
  const std::uint32_t even = lowest_bit(mantissa);
  number.digits.assign(mantissa >> even);
  exponent += static_cast<std::int32_t>(even);
  if (exponent >= 0)
    return number.digits.multiply_by_power_of_two(static_cast<std::uint32_t>(exponent));
  // m / 2^k is 5^k m / 10^k.
  number.behind_point = static_cast<std::uint32_t>(-exponent);
  number.digits.multiply_by_power_of_five(number.behind_point);
}

// Rounds to `wanted` digits, counted from the first digit that is not 0. If all were nines, the
// number gets one more digit.
GPUFS_HD inline void round_to_digits(exact_number& number, std::uint64_t wanted) {
  const std::uint32_t digits = number.digits.digits();
  if (digits > wanted) number.digits.round_at(digits - static_cast<std::uint32_t>(wanted));
}

// The power of ten of the first digit.
GPUFS_HD inline std::int32_t power_of_first(const exact_number& number) {
  const std::uint32_t digits = number.digits.digits();
  return digits == 0 ? 0
                     : static_cast<std::int32_t>(digits) - 1 -
                           static_cast<std::int32_t>(number.behind_point);
}

// Writes the digits of the powers of ten from `from` down to `to`.
GPUFS_HD inline void put_digits(text_sink& sink, const exact_number& number, std::int64_t from,
                                std::int64_t to) {
  const auto behind_point = static_cast<std::int64_t>(number.behind_point);
  for (; from >= to && !sink.is_full(); --from) {
    const std::int64_t place = from + behind_point;
    if (place < 0) return sink.fill('0', static_cast<std::uint64_t>(from - to + 1));
    sink.put(static_cast<char>('0' + number.digits.digit(static_cast<std::uint32_t>(place))));
  }
}

// Formats as %f. The number is already rounded.
GPUFS_HD inline void put_fixed(text_sink& to, const conversion& c, text_span sign,
                               const exact_number& number, std::int64_t precision) {
  const std::int64_t power = power_of_first(number);
  const std::int64_t first = power > 0 ? power : 0;
  const bool point = precision != 0 || c.alternative;
  put_field(to, c, c.zeros, sign,
            static_cast<std::uint64_t>(first + 1 + precision) + (point ? 1 : 0), [&] {
              put_digits(to, number, first, 0);
              if (point) to.put('.');
              put_digits(to, number, -1, -precision);
            });
}

// Formats as %e. The number is already rounded.
GPUFS_HD inline void put_scientific(text_sink& to, const conversion& c, text_span sign,
                                    const exact_number& number, std::int64_t precision) {
  const std::int64_t power = power_of_first(number);
  const auto exponent = static_cast<std::uint32_t>(power < 0 ? -power : power);
  const bool point = precision != 0 || c.alternative;
  const std::uint64_t exponent_bytes = exponent < 100 ? 4 : 5;
  put_field(to, c, c.zeros, sign,
            static_cast<std::uint64_t>(1 + precision) + (point ? 1 : 0) + exponent_bytes, [&] {
              put_digits(to, number, power, power);
              if (point) to.put('.');
              put_digits(to, number, power - 1, power - precision);
              to.put(c.capitals ? 'E' : 'e');
              to.put(power < 0 ? '-' : '+');
              if (exponent >= 100) to.put(static_cast<char>('0' + exponent / 100));
              to.put(static_cast<char>('0' + exponent / 10 % 10));
              to.put(static_cast<char>('0' + exponent % 10));
            });
}

// Formats as %g: %f or %e, depending on exponent and precision, without trailing zeros.
GPUFS_HD inline void put_general(text_sink& to, const conversion& c, text_span sign,
                                 exact_number& number, std::int64_t precision) {
  if (precision == 0) precision = 1;
  round_to_digits(number, static_cast<std::uint64_t>(precision));
  const std::int64_t power = power_of_first(number);
  const bool fixed = power >= -4 && power < precision;
  std::int64_t digits = precision;
  if (!c.alternative) {
    const std::int64_t there = number.digits.digits();
    if (digits > there) digits = there;
    while (digits > 1 && number.digits.digit(static_cast<std::uint32_t>(there - digits)) == 0)
      --digits;
    if (digits == 0) digits = 1;                          // the number 0
    if (fixed && digits < power + 1) digits = power + 1;  // keep the digits before the point
  }
  if (fixed) put_fixed(to, c, sign, number, digits - 1 - power);
  else put_scientific(to, c, sign, number, digits - 1);
}

// Formats as %f, %e, %g, %F, %E or %G.
GPUFS_HD GPUFS_OUT_OF_LINE inline void format_number(text_sink& to, const conversion& c,
                                                     double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const text_span sign = sign_of(c, bits >> 63 != 0);
  bits &= ~std::uint64_t{0} >> 1;
  constexpr std::uint64_t infinity = 0x7ff0'0000'0000'0000ull;
  if (bits >= infinity) {
    const char* const small = bits == infinity ? "inf" : "nan";
    const char* const large = bits == infinity ? "INF" : "NAN";
    return put_field(to, c, false, sign, 3,
                     [&] { to.put(text_span{c.capitals ? large : small, 3}); });
  }
  exact_number number;
  set_exact(number, bits);
  const std::int64_t precision = c.precision < 0 ? 6 : c.precision;
  if (c.letter == 'g') return put_general(to, c, sign, number, precision);
  if (c.letter == 'e') {
    round_to_digits(number, static_cast<std::uint64_t>(precision) + 1);
    return put_scientific(to, c, sign, number, precision);
  }
  if (number.behind_point > precision)
    number.digits.round_at(number.behind_point - static_cast<std::uint32_t>(precision));
  put_fixed(to, c, sign, number, precision);
}

}  // namespace gpufs::detail

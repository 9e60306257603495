// Exact decimal numbers, for conversions between binary numbers and text without rounding errors.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs::detail {

// 10^n, n <= 9.
GPUFS_HD constexpr std::uint32_t power_of_ten(std::uint32_t n) {
  std::uint32_t power = 1;
  for (; n != 0; --n) power *= 10;
  return power;
}

// A natural number of at most 1,152 decimal digits. A limb holds nine digits; the lowest limb comes
// first. Digit 0 is the digit of the units.
//
// This size suffices for all uses. Double to text: 53 bits times 2^971 or times 5^1074 have at most
// 767 digits. Rounding above them, at digit 1,074 at most, needs one limb more. Text to double: at
// most 126 limbs (parse_number.cuh).
class decimal {
 public:
  static constexpr std::uint32_t digits_of_limb = 9;
  static constexpr std::uint32_t base = 1'000'000'000;
  static constexpr std::uint32_t limbs_max = 128;

  // The number of limbs. The highest limb is not 0; the number 0 has no limbs.
  GPUFS_HD std::uint32_t limbs() const { return limbs_; }
  GPUFS_HD std::uint32_t limb(std::uint32_t i) const { return i < limbs_ ? limb_[i] : 0; }

  GPUFS_HD std::uint32_t digits() const {
    if (limbs_ == 0) return 0;
    std::uint32_t count = (limbs_ - 1) * digits_of_limb;
    for (std::uint32_t top = limb_[limbs_ - 1]; top != 0; top /= 10) ++count;
    return count;
  }
  GPUFS_HD std::uint32_t digit(std::uint32_t i) const {
    return limb(i / digits_of_limb) / power_of_ten(i % digits_of_limb) % 10;
  }

  // Sets digit `i`, which must be 0. Set the highest digit first; it must not be 0.
  GPUFS_HD void set_digit(std::uint32_t i, std::uint32_t digit) {
    grow(i / digits_of_limb + 1);
    limb_[i / digits_of_limb] += digit * power_of_ten(i % digits_of_limb);
  }
  GPUFS_HD void assign(std::uint64_t value) {
    limbs_ = 0;
    for (; value != 0; value /= base) push(static_cast<std::uint32_t>(value % base));
  }

  GPUFS_HD void multiply(std::uint32_t factor) {
    std::uint64_t carry = 0;
    for (std::uint32_t i = 0; i < limbs_; ++i) {
      carry += std::uint64_t{limb_[i]} * factor;
      limb_[i] = static_cast<std::uint32_t>(carry % base);
      carry /= base;
    }
    for (; carry != 0; carry /= base) push(static_cast<std::uint32_t>(carry % base));
  }
  // Multiplies by 2^exponent, and by 5^exponent.
  GPUFS_HD void multiply_by_power_of_two(std::uint32_t exponent) {
    for (; exponent > 31; exponent -= 31) multiply(1u << 31);
    multiply(1u << exponent);
  }
  GPUFS_HD void multiply_by_power_of_five(std::uint32_t exponent) {
    constexpr std::uint32_t step = 13;
    constexpr std::uint32_t power = 1'220'703'125;  // 5^13, the greatest power of 5 in 32 bits
    for (; exponent >= step; exponent -= step) multiply(power);
    std::uint32_t rest = 1;
    for (; exponent != 0; --exponent) rest *= 5;
    multiply(rest);
  }
  // Divides by 2^exponent, rounding down. Returns true if there is a remainder.
  GPUFS_HD bool divide_by_power_of_two(std::uint32_t exponent) {
    bool rest = false;
    while (exponent != 0) {
      const std::uint32_t step = exponent < 31 ? exponent : 31;
      std::uint64_t remainder = 0;
      for (std::uint32_t i = limbs_; i-- > 0;) {
        const std::uint64_t part = remainder * base + limb_[i];
        limb_[i] = static_cast<std::uint32_t>(part >> step);
        remainder = part & ((std::uint64_t{1} << step) - 1);
      }
      trim();
      rest = rest || remainder != 0;
      exponent -= step;
    }
    return rest;
  }

  // Rounds to the nearest multiple of 10^place, and ties to the multiple with an even digit there.
  GPUFS_HD void round_at(std::uint32_t place) {
    if (place == 0) return;
    const std::uint32_t first = digit(place - 1);
    bool up = first > 5;
    if (first == 5) up = digit(place) % 2 != 0 || has_digits_below(place - 1);
    const std::uint32_t at = place / digits_of_limb;
    const std::uint32_t unit = power_of_ten(place % digits_of_limb);
    for (std::uint32_t i = 0; i < at && i < limbs_; ++i) limb_[i] = 0;
    if (at < limbs_) limb_[at] -= limb_[at] % unit;
    if (up) {
      grow(at + 1);
      limb_[at] += unit;
      for (std::uint32_t i = at; limb_[i] >= base; ++i) {
        limb_[i] -= base;
        grow(i + 2);
        ++limb_[i + 1];
      }
    }
    trim();
  }
  GPUFS_HD bool has_digits_below(std::uint32_t place) const {
    const std::uint32_t at = place / digits_of_limb;
    for (std::uint32_t i = 0; i < at && i < limbs_; ++i) {
      if (limb_[i] != 0) return true;
    }
    return limb(at) % power_of_ten(place % digits_of_limb) != 0;
  }

 private:
  GPUFS_HD void push(std::uint32_t value) {
    GPUFS_ASSERT(limbs_ < limbs_max);
    limb_[limbs_++] = value;
  }
  GPUFS_HD void grow(std::uint32_t limbs) {
    while (limbs_ < limbs) push(0);
  }
  GPUFS_HD void trim() {
    while (limbs_ != 0 && limb_[limbs_ - 1] == 0) --limbs_;
  }

  std::uint32_t limbs_ = 0;
  std::uint32_t limb_[limbs_max];  // only the first `limbs_` are valid
};

}  // namespace gpufs::detail

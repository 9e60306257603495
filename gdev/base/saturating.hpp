/** Sums and differences that stay within the numbers, whatever clients say. */
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace gdev {

/** Returns a - b, or 0. */
[[nodiscard]] constexpr std::uint64_t less(std::uint64_t a, std::uint64_t b) noexcept {
  return a - std::min(a, b);
}

/** Returns a + b, or the largest number. */
[[nodiscard]] constexpr std::uint64_t sum(std::uint64_t a, std::uint64_t b) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return a > most - b ? most : a + b;
}

}  // namespace gdev

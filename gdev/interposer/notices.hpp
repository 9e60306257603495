/** What gdev says to a program's user: lines on standard error. */
#pragma once

#include <array>
#include <cstdint>

namespace gdev {

/**
 * Writes a line that names this process and its virtual GPU, if standard error takes it at once.
 *
 * As std::printf(), without the end of the line.
 */
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) noexcept;

[[nodiscard]] constexpr double mebibytes(std::uint64_t bytes) noexcept {
  return static_cast<double>(bytes) / (1 << 20);
}

/** Returns a virtual GPU's limit as text. */
[[nodiscard]] std::array<char, 40> text_of_limit(std::uint64_t bytes) noexcept;

}  // namespace gdev

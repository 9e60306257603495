/** Names of driver functions that programs asked for and the table lacks. */
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gdev {

/**
 * The first names that were added, each once, and how often any was asked for.
 *
 * Thread-safe, without locks. A name is stored once and never changes.
 */
class name_list {
 public:
  static constexpr std::size_t capacity = 64;
  static constexpr std::size_t longest = 95;  // characters; the rest of a name is cut off

  void add(std::string_view name) noexcept;

  /** Returns how often add() was called. */
  [[nodiscard]] std::uint64_t times() const noexcept {
    return times_.load(std::memory_order_relaxed);
  }

  /** Returns a stored name, or null past the last one. */
  [[nodiscard]] const char* at(std::size_t index) const noexcept;

 private:
  enum place_state : std::uint32_t { empty, writing, written };

  struct place {
    std::atomic<std::uint32_t> state{empty};
    std::array<char, longest + 1> name{};
  };

  std::atomic<std::uint64_t> times_{0};
  std::array<place, capacity> places_;
};

/** Returns the list of this process. */
[[nodiscard]] name_list& unknown_names() noexcept;

}  // namespace gdev

/** How often a program called functions of the driver: counted without cost to other threads. */
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "driver/function_table.hpp"

namespace gdev {

/** One count for each class of functions; on a cache line of its own, as one thread writes it. */
struct alignas(64) call_line {
  std::array<std::atomic<std::uint64_t>, function_classes> calls{};
};

/** Returns the calls of a class by all threads, as far as they are visible. */
[[nodiscard]] std::uint64_t count_calls(function_class kind) noexcept;

/** Counts a call by the calling thread. */
void count_call(function_class kind) noexcept;

}  // namespace gdev

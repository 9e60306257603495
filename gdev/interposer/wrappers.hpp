/** What the interposer does in place of functions of the driver, or around them. */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the function that stands in for a driver's, or null if there is none. */
[[nodiscard]] void* wrapper_of(function_id id) noexcept;

/** Returns a wrapper as tables of functions have it. */
template <typename Function>
[[nodiscard]] void* address_of(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

/** Returns a function that the driver lacks: it returns an error, whatever the arguments are. */
[[nodiscard]] void* missing_function() noexcept;

}  // namespace gdev

/**
 * The real driver, before which the interposer stands.
 *
 * It is found and loaded at the first call of a driver function, or the first look for one, so a
 * program that does neither pays nothing. All functions are thread-safe.
 */
#pragma once

#include <array>

#include "driver/function_table.hpp"

namespace gdev {

/** The driver's functions, once it is loaded; null for those that it lacks. Never changes then. */
extern std::array<void*, function_count> driver_functions;

/** Returns the driver's file, or an empty string if there is none. Does not load it. */
[[nodiscard]] const char* driver_path() noexcept;

/** Returns the driver's function, or null if it has none of this name. Loads the driver. */
[[nodiscard]] void* driver_function(function_id id) noexcept;

/** Looks for a function that the table lacks. Returns null if the driver lacks it too. */
[[nodiscard]] void* driver_symbol(const char* name) noexcept;

/** Returns the number of the function of this address and written name, or -1. */
[[nodiscard]] int function_at(const void* address, std::string_view written) noexcept;

/** Calls the driver from a wrapper, which runs only if the driver has the function. */
template <typename Result, typename... Arguments>
Result call_driver(function_id id, Arguments... arguments) noexcept {
  return reinterpret_cast<Result (*)(Arguments...)>(driver_functions[id])(arguments...);
}

}  // namespace gdev

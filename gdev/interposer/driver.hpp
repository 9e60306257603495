/**
 * The real driver, before which the interposer stands.
 *
 * It is found and loaded at the first call of a driver function, or the first look for one, so a
 * program that does neither pays nothing. All functions are thread-safe. None holds a lock while it
 * calls the loader: a thread may hold the loader's lock when it comes here, and wait for ours.
 */
#pragma once

#include <array>
#include <string_view>

#include "driver/function_table.hpp"

namespace gdev {

/** The driver, once it is loaded. Never changes, and is never unloaded. */
struct loaded_driver {
  struct place {
    const void* address;
    int id;
  };

  void* handle = nullptr;  // null: it could not be loaded, and standard error says why
  std::array<void*, function_count> functions{};  // null for those that it lacks
  // All functions that it has, sorted by address. Several names may share one.
  std::array<place, function_count> by_address{};
  std::size_t known = 0;
};

/** Returns the driver's file, or an empty string if there is none. Does not load it. */
[[nodiscard]] const char* driver_path() noexcept;

/**
 * Returns the driver; loads it first.
 *
 * Null if the calling thread is loading it: then the driver's own initialization asks, or that of a
 * library that it needs.
 */
[[nodiscard]] const loaded_driver* load_driver() noexcept;

/** Returns the driver if it has been loaded, else null. */
[[nodiscard]] const loaded_driver* driver_if_loaded() noexcept;

/** Looks for a function that the table lacks. Returns null if the driver lacks it too. */
[[nodiscard]] void* driver_symbol(const char* name) noexcept;

/** Returns the number of the function of this address and written name, or -1. */
[[nodiscard]] int function_at(const void* address, std::string_view written) noexcept;

/**
 * Calls the driver from a wrapper, which runs only when the driver is loaded.
 *
 * The arguments must have the types of the driver's function. Returns CUDA_ERROR_NOT_SUPPORTED if
 * the driver lacks it.
 */
template <typename Result, typename... Arguments>
Result call_driver(function_id id, Arguments... arguments) noexcept {
  void* const function = driver_if_loaded()->functions[id];
  return function == nullptr ? static_cast<Result>(801)
                             : reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

}  // namespace gdev

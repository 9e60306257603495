/**
 * The driver's functions by number: their exported names and their classes.
 *
 * make_functions.py writes functions.inc, sorted by name. Nothing here depends on cuda.h, whose
 * macros rename functions; `id_##name` and `#name` are not renamed.
 */
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gdev {

/** What a function does to what gdev manages; driver/functions.txt describes the classes. */
enum class function_class : std::uint8_t {
  launch,
  copy,
  memory,
  handle,
  query,
  context,
  capture,
  forward,
};

/** The number of each exported function: its place in the tables. */
enum function_id : int {
#define GDEV_FUNCTION(index, name, kind) id_##name = index,
#include "functions.inc"
#undef GDEV_FUNCTION
  function_count,
};

struct function_info {
  const char* name;
  function_class kind;
};

inline constexpr std::array<function_info, function_count> functions{{
#define GDEV_FUNCTION(index, name, kind) {#name, function_class::kind},
#include "functions.inc"
#undef GDEV_FUNCTION
}};

/** Returns the function's number, or -1 if the table lacks it. */
[[nodiscard]] int find_function(std::string_view name) noexcept;

/** Returns the name that programs write: without the version and the mark of a default stream. */
[[nodiscard]] std::string_view written_name(std::string_view exported) noexcept;

}  // namespace gdev

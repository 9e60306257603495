/** Wrappers of the calls that load and unload code: they change the overhead (overhead.hpp). */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of such a call, or null if `id` is none. */
[[nodiscard]] void* module_wrapper(function_id id) noexcept;

}  // namespace gdev

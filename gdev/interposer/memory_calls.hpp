/** The wrappers of calls that allocate, free and report memory: they keep to the limit. */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of such a call, or null if `id` is none. */
[[nodiscard]] void* memory_wrapper(function_id id) noexcept;

}  // namespace gdev

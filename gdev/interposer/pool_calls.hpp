/** The wrappers of calls that concern pools of stream-ordered allocations, and synchronizations. */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of such a call, or null if `id` is none. */
[[nodiscard]] void* pool_wrapper(function_id id) noexcept;

}  // namespace gdev

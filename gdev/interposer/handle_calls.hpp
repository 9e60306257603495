/** Wrappers of the calls that name memory by handles (cuMemCreate), or map it. */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of a function, or null. */
[[nodiscard]] void* handle_wrapper(function_id id) noexcept;

}  // namespace gdev

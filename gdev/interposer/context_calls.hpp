/** The wrappers of calls that make and end contexts: with a context, its memory is freed. */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of such a call, or null if `id` is none. */
[[nodiscard]] void* context_wrapper(function_id id) noexcept;

/** In a forked child: it has no contexts, and no captures in them. */
void forget_contexts() noexcept;

}  // namespace gdev

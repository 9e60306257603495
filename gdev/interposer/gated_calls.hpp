/** The wrappers of calls that submit work to the GPU. */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of a function that submits work or records a graph, or null. */
[[nodiscard]] void* gated_wrapper(function_id id) noexcept;

}  // namespace gdev

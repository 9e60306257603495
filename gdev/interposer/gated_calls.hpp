/** The wrappers of calls that submit work to the GPU. */
#pragma once

#include <string_view>

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of a function that submits work or records a graph, or null. */
[[nodiscard]] void* gated_wrapper(function_id id) noexcept;

/** A program got a function that gdev does not know: if it submits work, nothing can be swapped. */
void note_unknown_function(std::string_view name) noexcept;

}  // namespace gdev

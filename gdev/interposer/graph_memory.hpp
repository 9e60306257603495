/**
 * Memory nodes of graphs (cuGraphAddMemAllocNode, captured cuMemAllocAsync).
 *
 * The driver takes their memory when a graph is uploaded or launched, from a pool of the device
 * that it keeps until cuDeviceGraphMemTrim(). What the pool has reserved counts for the limit. A
 * graph with such nodes is uploaded before each launch: so it is known what it takes, and a graph
 * that does not fit is not launched. Other graphs cost nothing.
 */
#pragma once

#include "driver/function_table.hpp"

namespace gdev {

/** Returns the wrapper of a call that concerns such graphs, or null if `id` is none. */
[[nodiscard]] void* graph_wrapper(function_id id) noexcept;

/** Counts what the pools have now, where that is less than before: a context has ended. */
void note_less_graph_memory() noexcept;

/** In a forked child. */
void forget_graph_memory() noexcept;

}  // namespace gdev

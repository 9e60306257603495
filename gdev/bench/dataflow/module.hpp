/** The process of a module. */
#pragma once

#include <cstddef>
#include <string>

#include "bench/dataflow/board.hpp"
#include "bench/dataflow/graph.hpp"

namespace gdev_bench {

/**
 * Follows the orders of the board until the last. Ends the process if it cannot.
 *
 * kernels: PTX.
 */
void run_module(const graph& flow, std::size_t number, const board& shared,
                const std::string& kernels);

}  // namespace gdev_bench

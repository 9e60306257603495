/** The tiles in which kernels multiply matrices. */
#pragma once

namespace gdev_bench {

/** A block has tile x tile threads, and a grid one block for each tile of the result. */
inline constexpr unsigned tile = 32;

}  // namespace gdev_bench

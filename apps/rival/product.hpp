// The product of numbers by a processor, as fast as it multiplies.
#pragma once

#include <cstdint>

namespace gpufs::rival {

inline constexpr std::uint64_t panel_width = 32;   // columns of a panel
inline constexpr std::uint64_t rows_together = 8;  // that are multiplied

// Adds to `sums`, of each of `count` rows and each column of a panel, the sum of the products of
// `numbers` of them. In the panel the columns' numbers lie side by side. `count`: a multiple of
// `rows_together`.
void add_products(const float* const* rows, std::uint64_t count, const float* panel,
                  std::uint64_t numbers, float (*sums)[panel_width]);

}  // namespace gpufs::rival

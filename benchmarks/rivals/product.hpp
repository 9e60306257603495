// The product of matrices on a CPU, at the speed of its multipliers.
#pragma once

#include <cstdint>

namespace gpufs::rival {

inline constexpr std::uint64_t panel_width = 32;   // columns of a panel
inline constexpr std::uint64_t rows_together = 8;  // rows that are multiplied together

// Adds to `sums`, for each of `count` rows and each column of a panel, the sum of the products of
// `numbers` numbers. In the panel the numbers of all columns are adjacent. `count`: a multiple of
// `rows_together`.
void add_products(const float* const* rows, std::uint64_t count, const float* panel,
                  std::uint64_t numbers, float (*sums)[panel_width]);

}  // namespace gpufs::rival

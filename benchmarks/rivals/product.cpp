#include "rivals/product.hpp"

#include <cstring>

namespace gpufs::rival {
namespace {

// Multiplies some rows and columns at a time, with the sums in registers.
template <int Lanes, int Rows>
inline __attribute__((always_inline)) void add(const float* const* rows, std::uint64_t count,
                                               const float* panel, std::uint64_t numbers,
                                               float (*sums)[panel_width]) {
  typedef float lanes
      __attribute__((vector_size(Lanes * sizeof(float))));  // an alias would have one element
  for (std::uint64_t part = 0; part < panel_width; part += 2 * Lanes) {
    for (std::uint64_t v = 0; v < count; v += Rows) {
      lanes low[Rows] = {}, high[Rows] = {};
      for (std::uint64_t k = 0; k < numbers; ++k) {
        lanes a, b;
        std::memcpy(&a, panel + k * panel_width + part, sizeof a);
        std::memcpy(&b, panel + k * panel_width + part + Lanes, sizeof b);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
          const float x = rows[v + i][k];
          low[i] += a * x;
          high[i] += b * x;
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        float* const to = sums[v + i] + part;
        lanes a, b;
        std::memcpy(&a, to, sizeof a);
        std::memcpy(&b, to + Lanes, sizeof b);
        a += low[i], b += high[i];
        std::memcpy(to, &a, sizeof a);
        std::memcpy(to + Lanes, &b, sizeof b);
      }
    }
  }
}

// As many sums as there are registers.
#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4"))) void multiply(const float* const* rows,
                                                        std::uint64_t count, const float* panel,
                                                        std::uint64_t numbers,
                                                        float (*sums)[panel_width]) {
  add<16, 8>(rows, count, panel, numbers, sums);
}
__attribute__((target("arch=x86-64-v3"))) void multiply(const float* const* rows,
                                                        std::uint64_t count, const float* panel,
                                                        std::uint64_t numbers,
                                                        float (*sums)[panel_width]) {
  add<8, 4>(rows, count, panel, numbers, sums);
}
__attribute__((target("default")))
#endif
void multiply(const float* const* rows, std::uint64_t count, const float* panel,
              std::uint64_t numbers, float (*sums)[panel_width]) {
  add<4, 4>(rows, count, panel, numbers, sums);
}

}  // namespace

void add_products(const float* const* rows, std::uint64_t count, const float* panel,
                  std::uint64_t numbers, float (*sums)[panel_width]) {
  multiply(rows, count, panel, numbers, sums);
}

}  // namespace gpufs::rival

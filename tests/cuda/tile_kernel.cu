// Products of tiles, as each kind of matrix units makes them: so that all are compiled and
// assembled, wherever that is done. That the numbers are right is seen where applications multiply
// (tests/python/test_linear.py).
#include "tile/rows.cuh"

namespace gpufs::tile {
namespace {

template <int Parts>
struct memory {
  char stages[stages_bytes<Parts>];
  row_table rows;
};

template <int Parts, class T>
__global__ void __launch_bounds__(threads, 2)
    multiply(const char* left, std::uint64_t stride, const panel right, float* out) {
  const block_group g = this_block();
  auto& own = slice_memory<memory<Parts>>();
  set_rows(g, own.rows, left, stride, side);
  product<Parts> sums(nullptr);
  const auto columns = static_cast<std::uint32_t>(stride / sizeof(T));
  add_product<Parts, T, true>(g, sums, own.stages, {own.rows, side, columns, right, 0, 0},
                              [](std::uint32_t, std::uint32_t, const auto&) {});
  sums.each([&](std::uint32_t m, std::uint32_t n, float sum) { out[m * side + n] = sum; });
}

template __global__ void multiply<1, bfloat16>(const char*, std::uint64_t, const panel, float*);
template __global__ void multiply<2, float>(const char*, std::uint64_t, const panel, float*);
template __global__ void multiply<3, float>(const char*, std::uint64_t, const panel, float*);

}  // namespace
}  // namespace gpufs::tile

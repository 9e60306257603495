// Compiled by nvcc where there is one, by the host compiler otherwise.
#include "device_array.hpp"
#include "job/job.hpp"
#include "linear/checks.hpp"
#include "linear/matmul_kernels.cuh"
#include "tile/cut.hpp"

namespace gpufs::linear {
namespace {

// How a left matrix is cut into bands, of which two have room in half of the cache, if there are any that small.
struct left_cut : tile::cut {
  static constexpr std::uint32_t group_tiles = 16;
  std::uint32_t band_tiles = 16;
  bool brings;
  left_cut(const mount& m, std::uint64_t depth, std::uint64_t number_bytes)
      : cut(m, m.multiprocessors() * multiply_tiles<float, 3>::blocks_per_multiprocessor, depth * number_bytes, depth,
            number_bytes) {
    const auto two_bands = [&] { return 2 * pages_of(std::uint64_t{band_tiles} * rows * depth * number_bytes); };
    while (two_bands() > pages && band_tiles > 1) band_tiles /= 2;
    brings = two_bands() <= pages;
  }
};

template <class T, int Parts>
void matmul_of(const mount& m, const array_file& a, std::uint64_t rows, std::uint64_t depth, const array_file& b,
               std::uint64_t columns, const std::string& out, std::uint64_t out_offset, bool alone) {
  const job::job work(m, "matmul", {a.path, b.path, out}, alone);
  constexpr std::uint64_t most = limits::file_bytes_max / (tile::slice_bytes * Parts);  // more than memories have
  if (tile::panel::slices_in(depth) > most / ceiling(columns, tile::side)) throw error(ENOMEM, "matmul", b.path);
  const device_array<char> slices(m, tile::panel::bytes(columns, depth, Parts));
  using pack = pack_columns<T, Parts>;
  work.launch(pack(work.path(1), 1, b.offset, depth, columns, slices.data(), work.failed()),
              ceiling(depth, tile::depth), work.many(), pack::scratch_bytes);

  const left_cut pieces(m, depth, sizeof(T));
  const std::uint64_t down = ceiling(rows, pieces.rows);
  const device_array<atomic_word<std::uint64_t>> next(m, 1), done(m, down);
  using multiply = multiply_tiles<T, Parts>;
  const multiply kernel{{work.path(0), 0, a.offset},
                        {work.path(2), 2, out_offset},
                        rows,
                        depth,
                        columns,
                        pieces.part_columns,
                        pieces.rows,
                        pieces.band_tiles,
                        left_cut::group_tiles,
                        pieces.brings,
                        {slices.data(), static_cast<std::uint32_t>(tile::panel::slices_in(depth))},
                        work.failed(),
                        next.data(),
                        done.data()};
  work.launch(kernel, down * ceiling(columns, tile::side), pieces.blocks,
              tile::scratch_bytes(m, sizeof(typename multiply::memory)));
  work.finish();
}

}  // namespace

void matmul(const mount& m, const array_file& a, std::uint64_t rows, std::uint64_t depth, const array_file& b,
            std::uint64_t columns, const std::string& out, std::uint64_t out_offset, bool alone) {
  check_size(rows, depth, bytes_of(a.type));
  check_size(depth, columns, bytes_of(b.type));
  check_size(rows, columns, sizeof(float));
  check_offsets(a, b, out_offset);
  if (a.type == element::float32) matmul_of<float, 3>(m, a, rows, depth, b, columns, out, out_offset, alone);
  else matmul_of<bfloat16, 1>(m, a, rows, depth, b, columns, out, out_offset, alone);
}

}  // namespace gpufs::linear

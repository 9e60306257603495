// Compiled by nvcc where there is one, by the host compiler otherwise.
#include <algorithm>

#include "device_array.hpp"
#include "job/job.hpp"
#include "linear/checks.hpp"
#include "linear/matmul_kernels.cuh"

namespace gpufs::linear {
namespace {

using job::ceiling;

// How a left matrix is cut, so that what is mapped at a time, and then two bands, have room in half of the cache.
struct cut {
  static constexpr std::uint32_t band_most = 16, group_tiles = 16;
  std::uint32_t blocks, tile_rows = tile::side, band_tiles = band_most;
  bool brings = true;
  cut(const mount& m, std::uint64_t row_bytes, bool is_in_parts)
      : blocks(m.multiprocessors() * multiply_tiles<float, 3>::blocks_per_multiprocessor) {
    const std::uint64_t page = m.options().page_bytes, room = m.options().cache_bytes / page / 2;
    const auto mapped = [&] { return is_in_parts ? 2 * tile_rows : tile_rows * row_bytes / page + 2; };
    while (mapped() * blocks > room && blocks > m.multiprocessors()) blocks /= 2;
    while (mapped() * blocks > room && tile_rows > 1) tile_rows /= 2;
    blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(room / mapped(), 1, blocks));
    const auto two_bands = [&] { return 2 * (std::uint64_t{band_tiles} * tile_rows * row_bytes / page + 2); };
    while (two_bands() > room && band_tiles > 1) band_tiles /= 2;
    brings = two_bands() <= room;
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

  const std::uint64_t part_depth = std::min<std::uint64_t>(depth, m.options().page_bytes / sizeof(T));
  const cut pieces(m, depth * sizeof(T), part_depth != depth);
  const std::uint64_t down = ceiling(rows, pieces.tile_rows);
  const device_array<atomic_word<std::uint64_t>> next(m, 1), done(m, down);
  using multiply = multiply_tiles<T, Parts>;
  const multiply kernel{{work.path(0), 0, a.offset},
                        {work.path(2), 2, out_offset},
                        rows,
                        depth,
                        columns,
                        static_cast<std::uint32_t>(part_depth),
                        pieces.tile_rows,
                        pieces.band_tiles,
                        cut::group_tiles,
                        pieces.brings,
                        {slices.data(), static_cast<std::uint32_t>(tile::panel::slices_in(depth))},
                        work.failed(),
                        next.data(),
                        done.data()};
  const std::size_t of_twin = m.device() == device_kind::cpu ? tile::product::twin_memory_bytes : 0;
  work.launch(kernel, down * ceiling(columns, tile::side), pieces.blocks, sizeof(typename multiply::memory) + of_twin);
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

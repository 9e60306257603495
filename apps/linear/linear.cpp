// Compiled by nvcc where there is one, by the host compiler otherwise.
#include "linear/linear.hpp"

#include <algorithm>

#include "device_array.hpp"
#include "job/job.hpp"
#include "linear/kernels.cuh"
#include "linear/matmul_kernels.cuh"

namespace gpufs::linear {
namespace {

constexpr std::uint32_t warps_of_block = job::job::threads / 32;
// What a block asks for at once, a run of the copy engine's; of short rows less, as they need more blocks. And what a warp multiplies at
// a time.
constexpr std::uint64_t block_bytes = std::uint64_t{8} << 20, short_block_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t piece_bytes = std::uint64_t{64} << 10;
// Shorter rows are read several at a time.
constexpr std::uint64_t short_row_bytes = multiply_short_rows<float>::batch_bytes / 4;

using job::ceiling;

template <class T>
void matvec_of(const mount& m, const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
               const array_file& vector, const std::string& out, std::uint64_t out_offset, bool alone) {
  const job::job work(m, "matvec", {matrix.path, vector.path, out}, alone);
  const std::uint64_t row_bytes = columns * sizeof(T);
  const bool is_short = row_bytes < short_row_bytes;
  const std::uint64_t piece_columns = is_short ? columns : std::min<std::uint64_t>(columns, piece_bytes / sizeof(T));
  const std::uint64_t pieces_of_row = ceiling(columns, piece_columns);
  const device_array<T> numbers(m, columns);
  const device_array<float> sums(m, rows * pieces_of_row);
  work.read(role::vector, vector.offset, columns * sizeof(T), numbers.data());
  // Each block has something to do, also where the matrix is small.
  const std::uint64_t share = is_short ? std::clamp<std::uint64_t>(rows * row_bytes / work.many(), 1, short_block_bytes)
                                       : std::clamp<std::uint64_t>(rows * row_bytes / work.few(), 1, block_bytes);
  const factors<T> both{work.path(role::matrix), matrix.offset, rows,         columns,
                        numbers.data(),          sums.data(),   work.failed()};
  if (is_short) {
    const std::uint64_t block_rows = std::max<std::uint64_t>(share / row_bytes, 1);
    work.launch(multiply_short_rows<T>(both, block_rows), ceiling(rows, block_rows), work.many(),
                warps_of_block * multiply_short_rows<T>::batch_bytes);
  } else {
    const std::uint64_t block_pieces = std::max<std::uint64_t>(share / (piece_columns * sizeof(T)), warps_of_block);
    work.launch(multiply_pieces<T>(both, pieces_of_row, piece_columns, block_pieces),
                ceiling(rows * pieces_of_row, block_pieces), work.few());
  }
  work.launch(write_sums(work.path(role::product), out_offset, rows, pieces_of_row, sums.data(), work.failed()),
              ceiling(rows, write_sums::batch), work.many(), write_sums::batch * sizeof(float));
  work.finish();
}

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
  const device_array<char> slices(m, tile::panel::bytes(columns, depth, Parts));
  const device_array<atomic_word<std::uint64_t>> next(m, 1);
  using pack = pack_columns<T, Parts>;
  work.launch(pack(work.path(1), 1, b.offset, depth, columns, slices.data(), work.failed()),
              ceiling(depth, tile::depth), work.many(), pack::scratch_bytes);

  const std::uint64_t part_depth = std::min<std::uint64_t>(depth, m.options().page_bytes / sizeof(T));
  const cut pieces(m, depth * sizeof(T), part_depth != depth);
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
                        next.data()};
  const std::size_t of_twin = m.device() == device_kind::cpu ? tile::product::twin_memory_bytes : 0;
  work.launch(kernel, ceiling(rows, pieces.tile_rows) * ceiling(columns, tile::side), pieces.blocks,
              sizeof(typename multiply::memory) + of_twin);
  work.finish();
}

std::uint64_t bytes_of(element type) { return type == element::float32 ? sizeof(float) : sizeof(bfloat16); }

// Of a matrix that there cannot be.
void check_size(std::uint64_t rows, std::uint64_t columns, std::uint64_t number_bytes) {
  if (rows == 0 || columns == 0) throw error(EINVAL, "a matrix without numbers");
  if (rows > limits::file_bytes_max / number_bytes / columns)
    throw error(EINVAL, "a matrix that is larger than files are");
}

void check_offsets(const array_file& a, const array_file& b, std::uint64_t out_offset) {
  if (b.type != a.type) throw error(EINVAL, "matrices or vectors of different types");
  if (a.offset % bytes_of(a.type) != 0 || b.offset % bytes_of(b.type) != 0 || out_offset % sizeof(float) != 0)
    throw error(EINVAL, "an offset that is no multiple of a number's size");
}

}  // namespace

void matvec(const mount& m, const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
            const array_file& vector, const std::string& out, std::uint64_t out_offset, bool alone) {
  check_size(rows, columns, bytes_of(matrix.type));
  check_offsets(matrix, vector, out_offset);
  if (matrix.type == element::float32) matvec_of<float>(m, matrix, rows, columns, vector, out, out_offset, alone);
  else matvec_of<bfloat16>(m, matrix, rows, columns, vector, out, out_offset, alone);
}

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

// Compiled by nvcc where there is one, by the host compiler otherwise.
#include <algorithm>

#include "device_array.hpp"
#include "job/job.hpp"
#include "linear/checks.hpp"
#include "linear/matvec_kernels.cuh"

namespace gpufs::linear {
namespace {

constexpr std::uint32_t warps_of_block = job::job::threads / 32;
// What a block asks for at once, a run of the copy engine's; of short rows less, as they need more blocks. And what a warp multiplies at
// a time.
constexpr std::uint64_t block_bytes = std::uint64_t{8} << 20, short_block_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t piece_bytes = std::uint64_t{64} << 10;
// Shorter rows are read several at a time.
constexpr std::uint64_t short_row_bytes = multiply_short_rows<float>::batch_bytes / 4;

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

}  // namespace

void matvec(const mount& m, const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
            const array_file& vector, const std::string& out, std::uint64_t out_offset, bool alone) {
  check_size(rows, columns, bytes_of(matrix.type));
  check_offsets(matrix, vector, out_offset);
  if (matrix.type == element::float32) matvec_of<float>(m, matrix, rows, columns, vector, out, out_offset, alone);
  else matvec_of<bfloat16>(m, matrix, rows, columns, vector, out, out_offset, alone);
}

}  // namespace gpufs::linear

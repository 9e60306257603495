// Compiled by nvcc where there is one, by the host compiler otherwise.
#include "linear/linear.hpp"

#include <algorithm>

#include "gpufs/launch.cuh"
#include "kernel_files.cuh"
#include "linear/kernels.cuh"

namespace gpufs::linear {
namespace {

constexpr std::uint32_t threads = 256, warps_of_block = threads / 32;
// What a block asks for at once, a run of the copy engine's; of short rows less, as they need more blocks. And what a warp multiplies at
// a time.
constexpr std::uint64_t block_bytes = std::uint64_t{8} << 20, short_block_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t piece_bytes = std::uint64_t{64} << 10;
// Shorter rows are read several at a time.
constexpr std::uint64_t short_row_bytes = multiply_short_rows<float>::batch_bytes / 4;

std::uint64_t ceiling(std::uint64_t n, std::uint64_t d) { return n / d + (n % d != 0 ? 1 : 0); }

class job {
 public:
  job(const mount& m, bool alone) : mount_(m), alone_(alone) {}
  // A block for each multiprocessor: enough to keep the bus busy with large pieces, and few enough that they have room in a cache.
  std::uint32_t few() const { return mount_.multiprocessors(); }
  std::uint32_t many() const { return mount_.multiprocessors() * tuned_shape::blocks_per_multiprocessor; }

  template <class Kernel>
  void launch(const Kernel& kernel, std::uint64_t blocks, std::uint32_t most, std::size_t scratch_bytes = 0) const {
    const auto count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks, 1, most));
    gpufs::launch(mount_, {count, threads, scratch_bytes, nullptr, alone_}, kernel);
    // The first launch of the next kernel loads it, for which the driver waits; this one may be waiting for the driver.
    if (alone_) mount_.synchronize();
  }

 private:
  const mount& mount_;
  const bool alone_;
};

template <class T>
void matvec_of(const mount& m, const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
               const array_file& vector, const std::string& out, std::uint64_t out_offset, bool alone) {
  const job_files files(m, {matrix.path, vector.path, out});
  const job work(m, alone);
  const std::uint64_t row_bytes = columns * sizeof(T);
  const bool is_short = row_bytes < short_row_bytes;
  const std::uint64_t piece_columns = is_short ? columns : std::min<std::uint64_t>(columns, piece_bytes / sizeof(T));
  const std::uint64_t pieces_of_row = ceiling(columns, piece_columns);
  const device_array<T> numbers(m, columns);
  const device_array<float> sums(m, rows * pieces_of_row);
  work.launch(read_numbers(files[1], vector.offset, columns * sizeof(T), reinterpret_cast<char*>(numbers.data()),
                           role::vector, files.failed()),
              ceiling(row_bytes, std::uint64_t{64} << 10), work.many());
  // Each block has something to do, also where the matrix is small.
  const std::uint64_t share = is_short ? std::clamp<std::uint64_t>(rows * row_bytes / work.many(), 1, short_block_bytes)
                                       : std::clamp<std::uint64_t>(rows * row_bytes / work.few(), 1, block_bytes);
  const factors<T> both{files[0], matrix.offset, rows, columns, numbers.data(), sums.data(), files.failed()};
  if (is_short) {
    const std::uint64_t block_rows = std::max<std::uint64_t>(share / row_bytes, 1);
    work.launch(multiply_short_rows<T>(both, block_rows), ceiling(rows, block_rows), work.many(),
                warps_of_block * multiply_short_rows<T>::batch_bytes);
  } else {
    const std::uint64_t block_pieces = std::max<std::uint64_t>(share / (piece_columns * sizeof(T)), warps_of_block);
    work.launch(multiply_pieces<T>(both, pieces_of_row, piece_columns, block_pieces),
                ceiling(rows * pieces_of_row, block_pieces), work.few());
  }
  work.launch(write_sums(files[2], out_offset, rows, pieces_of_row, sums.data(), files.failed()),
              ceiling(rows, write_sums::batch), work.many(), write_sums::batch * sizeof(float));
  files.finish("matvec");
}

}  // namespace

void matvec(const mount& m, const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
            const array_file& vector, const std::string& out, std::uint64_t out_offset, bool alone) {
  if (rows == 0 || columns == 0) throw error(EINVAL, "a matrix without numbers");
  if (vector.type != matrix.type) throw error(EINVAL, "a matrix and a vector of different types");
  const std::uint64_t bytes = matrix.type == element::float32 ? sizeof(float) : sizeof(bfloat16);
  if (rows > limits::file_bytes_max / bytes / columns) throw error(EINVAL, "a matrix that is larger than files are");
  if (matrix.offset % bytes != 0 || vector.offset % bytes != 0 || out_offset % sizeof(float) != 0)
    throw error(EINVAL, "an offset that is no multiple of a number's size");
  if (matrix.type == element::float32) matvec_of<float>(m, matrix, rows, columns, vector, out, out_offset, alone);
  else matvec_of<bfloat16>(m, matrix, rows, columns, vector, out, out_offset, alone);
}

}  // namespace gpufs::linear

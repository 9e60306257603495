#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "common/arithmetic.cuh"
#include "common/owned_file.hpp"
#include "job/in_threads.hpp"
#include "rivals/host.hpp"
#include "rivals/linear/rivals.hpp"
#include "rivals/product.hpp"
#include "tile/numbers.cuh"

namespace gpufs::linear {
namespace {

using rival::panel_width;

constexpr std::uint64_t block_rows = 128;  // of the left matrix, that a thread takes
// of each row at a time, so that they and a panel's numbers fit into the second-level cache
constexpr std::uint64_t block_numbers = 1024;
constexpr std::uint64_t packed_rows = 16;  // of the right matrix, that a thread packs at a time

GPUFS_FOR_EACH_PROCESSOR void convert(const float* from, std::uint64_t count, float* to) {
  std::copy_n(from, count, to);
}
GPUFS_FOR_EACH_PROCESSOR void convert(const bfloat16* from, std::uint64_t count, float* to) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] = value_of(from[i]);
}

template <class T>
class host_product {
 public:
  host_product(const matmul_files& files, unsigned threads)
      : of_(files), threads_(threads), panels_(ceiling(files.columns, panel_width)),
        // Few enough that each thread has work, even if there are few rows.
        rows_at_once_(std::min(
            block_rows,
            ceiling(ceiling(files.rows, threads), rival::rows_together) * rival::rows_together)),
        packed_(panels_ * files.depth * panel_width) {
    for (unsigned t = 0; t < threads; ++t)
      own_.push_back(std::make_unique<memory>(panels_, files.columns));
  }

  void run() {
    const rival::mapped_file left(of_.left.path, of_.left.offset, of_.rows * of_.depth * sizeof(T));
    const rival::mapped_file right(of_.right.path, of_.right.offset,
                                   of_.depth * of_.columns * sizeof(T));
    const owned_file out(of_.out, O_WRONLY);
    job::in_threads(threads_, [&](std::size_t) {
      for (std::uint64_t k = next_packed_++ * packed_rows; k < of_.depth;
           k = next_packed_++ * packed_rows)
        pack(right.numbers<T>(), k, std::min(k + packed_rows, of_.depth));
    });
    job::in_threads(threads_, [&](std::size_t t) {
      for (std::uint64_t r = next_block_++ * rows_at_once_; r < of_.rows;
           r = next_block_++ * rows_at_once_) {
        const std::uint64_t count = std::min(rows_at_once_, of_.rows - r);
        multiply(left.numbers<T>() + r * of_.depth, count, *own_[t]);
        out.write(reinterpret_cast<const char*>(own_[t]->rows.data()),
                  count * of_.columns * sizeof(float), r * of_.columns * sizeof(float));
      }
    });
  }

 private:
  // Memory of one thread.
  struct memory {
    std::vector<float> left, sums, rows;
    memory(std::uint64_t panels, std::uint64_t columns)
        : left(block_rows * pitch), sums(panels * block_rows * panel_width),
          rows(block_rows * columns) {}
  };
  // Rows begin in different sets of the first-level cache.
  static constexpr std::uint64_t pitch = block_numbers + 16;

  void pack(const T* right, std::uint64_t first, std::uint64_t end) {
    populate(right + first * of_.columns, right + end * of_.columns);
    for (std::uint64_t p = 0; p < panels_; ++p) {
      const std::uint64_t column = p * panel_width;
      for (std::uint64_t k = first; k < end; ++k)
        convert(right + k * of_.columns + column, std::min(panel_width, of_.columns - column),
                packed_.data() + (p * of_.depth + k) * panel_width);
    }
  }

  // Computes some rows of the product into `own.rows`.
  void multiply(const T* left, std::uint64_t count, memory& own) const {
    populate(left, left + count * of_.depth);
    std::fill(own.sums.begin(), own.sums.end(), 0.0F);
    const float* rows[block_rows];
    for (std::uint64_t r = 0; r < block_rows; ++r)
      rows[r] = own.left.data() + std::min(r, count - 1) * pitch;
    const std::uint64_t whole = ceiling(count, rival::rows_together) * rival::rows_together;
    for (std::uint64_t k = 0; k < of_.depth; k += block_numbers) {
      const std::uint64_t numbers = std::min(block_numbers, of_.depth - k);
      for (std::uint64_t r = 0; r < count; ++r)
        convert(left + r * of_.depth + k, numbers, own.left.data() + r * pitch);
      for (std::uint64_t p = 0; p < panels_; ++p)
        rival::add_products(rows, whole, packed_.data() + (p * of_.depth + k) * panel_width,
                            numbers, sums_of(own, p));
    }
    for (std::uint64_t r = 0; r < count; ++r) {
      for (std::uint64_t p = 0; p < panels_; ++p) {
        const std::uint64_t column = p * panel_width;
        std::copy_n(sums_of(own, p)[r], std::min(panel_width, of_.columns - column),
                    own.rows.data() + r * of_.columns + column);
      }
    }
  }
  static float (*sums_of(memory& own, std::uint64_t panel)) [panel_width] {
    return reinterpret_cast<float (*)[panel_width]>(own.sums.data() +
                                                    panel * block_rows * panel_width);
  }

  const matmul_files& of_;
  const unsigned threads_;
  const std::uint64_t panels_, rows_at_once_;
  std::vector<float>
      packed_;  // panels of the right matrix: for each of its rows the panel's columns
  std::vector<std::unique_ptr<memory>> own_;
  std::atomic<std::uint64_t> next_packed_{0}, next_block_{0};
};

template <class T>
double seconds_of(const matmul_files& files, unsigned threads) {
  host_product<T> work(files, threads);
  const auto start = std::chrono::steady_clock::now();
  work.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double matmul_on_host(const matmul_files& files, unsigned threads) {
  return files.left.type == element::float32 ? seconds_of<float>(files, threads)
                                             : seconds_of<bfloat16>(files, threads);
}

}  // namespace gpufs::linear

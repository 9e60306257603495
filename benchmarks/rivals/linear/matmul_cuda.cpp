// Compiled by nvcc if there is one, otherwise by the host compiler.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include "rivals/linear/rivals.hpp"

#if defined(__CUDACC__)
#include "common/arithmetic.cuh"
#include "common/owned_file.hpp"
#include "job/in_threads.hpp"
#include "rivals/cuda.hpp"
#include "tile/rows.cuh"
#endif

namespace gpufs::linear {

#if defined(__CUDACC__)
namespace {

using rival::check;

constexpr std::uint64_t packed_bytes = std::uint64_t{4}
                                       << 20;  // of the right matrix, in one read of a thread

// Packs rows of the right matrix: each block packs as many rows as a slice is deep, for a tile's
// columns.
template <class T, int Parts>
__global__ void __launch_bounds__(tile::threads)
    pack_rows(const T* rows, std::uint64_t count, std::uint64_t columns, std::uint64_t first,
              std::uint64_t depth, char* slices) {
  const block_group g = this_block();
  auto* const numbers = reinterpret_cast<T*>(block_group::scratch());
  const std::uint64_t tiles = ceiling(columns, tile::side);
  const std::uint64_t row = blockIdx.x / tiles * tile::depth, column_tile = blockIdx.x % tiles;
  const std::uint64_t column = column_tile * tile::side;
  const auto height =
      static_cast<std::uint32_t>(count - row < tile::depth ? count - row : tile::depth);
  const auto width =
      static_cast<std::uint32_t>(columns - column < tile::side ? columns - column : tile::side);
  for (std::uint32_t i = threadIdx.x; i < height * tile::side; i += blockDim.x) {
    const std::uint32_t k = i / tile::side, n = i % tile::side;
    if (n < width) numbers[i] = rows[(row + k) * columns + column + n];
  }
  __syncthreads();
  tile::pack_columns<Parts>(
      g, numbers, tile::side, height, width,
      slices + tile::panel::place<Parts>(column_tile, (first + row) / tile::depth,
                                         tile::panel::slices_in(depth)));
}

// A block's shared memory.
template <int Parts>
struct tile_memory {
  char stages[tile::stages_bytes<Parts>];
  tile::row_table rows;
};

// Multiplies a band of rows, one block for each tile of the product. Blocks that run together share
// few columns.
template <class T, int Parts, bool Aligned>
__global__ void __launch_bounds__(tile::threads, 2)
    multiply_band(const T* left, std::uint64_t rows, std::uint64_t depth, std::uint64_t columns,
                  const tile::panel right, float* out) {
  const block_group g = this_block();
  auto& own = tile::slice_memory<tile_memory<Parts>>();
  const std::uint64_t down = ceiling(rows, tile::side);
  const std::uint64_t row = blockIdx.x % down * tile::side, column_tile = blockIdx.x / down;
  const std::uint64_t column = column_tile * tile::side;
  const auto count = static_cast<std::uint32_t>(rows - row < tile::side ? rows - row : tile::side);
  tile::set_rows(g, own.rows, reinterpret_cast<const char*>(left + row * depth), depth * sizeof(T),
                 count);
  tile::product<Parts> sums(nullptr);
  const tile::factors both{own.rows, count,       static_cast<std::uint32_t>(depth),
                           right,    column_tile, 0};
  tile::add_product<Parts, T, Aligned>(g, sums, own.stages, both,
                                       [](std::uint32_t, std::uint32_t, const auto&) {});
  sums.each([&](std::uint32_t m, std::uint32_t n, float sum) {
    if (m < count && column + n < columns) out[(row + m) * columns + column + n] = sum;
  });
}

template <class T, int Parts>
class pipeline {
 public:
  pipeline(const matmul_files& files, unsigned threads, std::uint64_t band_rows)
      : of_(files), threads_(threads), band_rows_(std::min(band_rows, files.rows)),
        out_at_(ceiling(band_rows_ * files.depth * sizeof(T), 256) * 256),
        packed_rows_(
            std::max<std::uint64_t>(packed_bytes / (files.columns * sizeof(T)) / tile::depth, 1) *
            tile::depth),
        slices_(tile::panel::bytes(files.columns, files.depth, Parts)),
        multiply_(tile::are_aligned<T>(0, files.depth * sizeof(T), files.depth)
                      ? multiply_band<T, Parts, true>
                      : multiply_band<T, Parts, false>) {
    const std::uint64_t bytes = std::max(out_at_ + band_rows_ * files.columns * sizeof(float),
                                         packed_rows_ * files.columns * sizeof(T));
    for (unsigned t = 0; t < 2 * threads; ++t)
      buffers_.push_back(std::make_unique<rival::half_buffer>(bytes));
    check(
        cudaFuncSetAttribute(multiply_, cudaFuncAttributeMaxDynamicSharedMemorySize, memory_bytes),
        "multiply_band");
    check(cudaDeviceSynchronize(),
          "cudaDeviceSynchronize");  // makes the zeros of the slices visible to all streams
  }

  void run() {
    const owned_file left(of_.left.path), right(of_.right.path), out(of_.out, O_WRONLY);
    std::latch packed(threads_);
    std::atomic<std::uint64_t> next_rows{0}, next_band{0};
    job::in_threads(threads_, [&](std::size_t t) {
      const rival::half_buffer* const own[] = {buffers_[2 * t].get(), buffers_[2 * t + 1].get()};
      {
        const arrival told(packed);
        for (unsigned turn = 0;; ++turn) {
          const std::uint64_t row = next_rows++ * packed_rows_;
          if (row >= of_.depth) break;
          own[turn % 2]->wait();
          pack(right, row, *own[turn % 2]);
        }
        for (const rival::half_buffer* b : own) b->wait();
      }
      band under_way[2];
      const auto finish = [&](unsigned half) {
        own[half]->wait();
        const band done = std::exchange(under_way[half], {});
        if (done.count != 0)
          out.write(own[half]->pinned + out_at_, done.count * of_.columns * sizeof(float),
                    done.row * of_.columns * sizeof(float));
      };
      for (unsigned turn = 0;; ++turn) {
        finish(turn % 2);
        const std::uint64_t row = next_band++ * band_rows_;
        if (row >= of_.rows) {
          finish((turn + 1) % 2);
          break;
        }
        under_way[turn % 2] = {row, std::min(band_rows_, of_.rows - row)};
        multiply(left, under_way[turn % 2], *own[turn % 2], packed);
      }
    });
  }

 private:
  static constexpr int memory_bytes = sizeof(tile_memory<Parts>);
  struct band {
    std::uint64_t row = 0, count = 0;
  };
  // A thread that fails must arrive too, so that the other threads do not wait for it.
  class arrival {
   public:
    explicit arrival(std::latch& at) : at_(at) {}
    ~arrival() { at_.count_down(); }
    arrival(const arrival&) = delete;
    arrival& operator=(const arrival&) = delete;

   private:
    std::latch& at_;
  };

  void pack(const owned_file& right, std::uint64_t row, const rival::half_buffer& b) const {
    const std::uint64_t count = std::min(packed_rows_, of_.depth - row),
                        row_bytes = of_.columns * sizeof(T);
    right.read(b.pinned, count * row_bytes, of_.right.offset + row * row_bytes);
    check(cudaMemcpyAsync(b.device, b.pinned, count * row_bytes, cudaMemcpyHostToDevice, b.stream),
          "cudaMemcpyAsync");
    const auto blocks =
        static_cast<unsigned>(ceiling(count, tile::depth) * ceiling(of_.columns, tile::side));
    pack_rows<T, Parts><<<blocks, tile::threads, sizeof(T) * tile::depth * tile::side, b.stream>>>(
        reinterpret_cast<const T*>(b.device), count, of_.columns, row, of_.depth, slices_.data());
    check(cudaGetLastError(), "launch");
  }

  // Enqueues the product and its copy into the buffer's pinned memory.
  void multiply(const owned_file& left, const band& of, const rival::half_buffer& b,
                const std::latch& packed) const {
    const std::uint64_t bytes = of.count * of_.depth * sizeof(T);
    left.read(b.pinned, bytes, of_.left.offset + of.row * of_.depth * sizeof(T));
    check(cudaMemcpyAsync(b.device, b.pinned, bytes, cudaMemcpyHostToDevice, b.stream),
          "cudaMemcpyAsync");
    packed.wait();
    const auto blocks =
        static_cast<unsigned>(ceiling(of.count, tile::side) * ceiling(of_.columns, tile::side));
    const tile::panel right{slices_.data(),
                            static_cast<std::uint32_t>(tile::panel::slices_in(of_.depth))};
    multiply_<<<blocks, tile::threads, memory_bytes, b.stream>>>(
        reinterpret_cast<const T*>(b.device), of.count, of_.depth, of_.columns, right,
        reinterpret_cast<float*>(b.device + out_at_));
    check(cudaGetLastError(), "launch");
    check(cudaMemcpyAsync(b.pinned + out_at_, b.device + out_at_,
                          of.count * of_.columns * sizeof(float), cudaMemcpyDeviceToHost, b.stream),
          "cudaMemcpyAsync");
  }

  const matmul_files& of_;
  const unsigned threads_;
  const std::uint64_t band_rows_, out_at_;  // place in a buffer: the product follows the band
  const std::uint64_t packed_rows_;
  const rival::device_numbers<char> slices_;
  void (*const multiply_)(const T*, std::uint64_t, std::uint64_t, std::uint64_t, tile::panel,
                          float*);
  std::vector<std::unique_ptr<rival::half_buffer>> buffers_;
};

template <class T, int Parts>
double seconds_of(const matmul_files& files, unsigned threads, std::uint64_t band_rows) {
  pipeline<T, Parts> work(files, threads, band_rows);
  const auto start = std::chrono::steady_clock::now();
  work.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double matmul_by_pipeline(const matmul_files& files, unsigned threads, std::uint64_t band_rows) {
  return files.left.type == element::float32 ? seconds_of<float, 3>(files, threads, band_rows)
                                             : seconds_of<bfloat16, 1>(files, threads, band_rows);
}
#else
double matmul_by_pipeline(const matmul_files&, unsigned, std::uint64_t) {
  throw error(ENOTSUP, "CUDA: this library was built without it");
}
#endif

}  // namespace gpufs::linear

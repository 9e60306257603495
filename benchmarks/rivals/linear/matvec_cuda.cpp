// Compiled by nvcc if there is one, otherwise by the host compiler.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "common/arithmetic.cuh"
#include "common/owned_file.hpp"
#include "job/in_threads.hpp"
#include "rivals/linear/rivals.hpp"

#if defined(__CUDACC__)
#include <cuda_bf16.h>

#include "rivals/cuda.hpp"
#endif

namespace gpufs::linear {

#if defined(__CUDACC__)
namespace {

using rival::check;

__device__ float value_of(float x) { return x; }
__device__ float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

// One warp for each row of a piece. The parts of a divided row are added up.
template <class T>
__global__ void multiply_rows(const T* a, const T* x, float* y, std::uint64_t rows,
                              std::uint64_t columns) {
  const std::uint64_t lane = threadIdx.x % 32, warps = std::uint64_t{gridDim.x} * blockDim.x / 32;
  for (std::uint64_t row = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; row < rows;
       row += warps) {
    float sums[8] = {};
    const T* const line = a + row * columns;
    std::uint64_t i = lane;
    for (; i + 7 * 32 < columns; i += 8 * 32) {
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[k] += value_of(line[i + 32 * k]) * value_of(x[i + 32 * k]);
    }
    for (; i < columns; i += 32) sums[0] += value_of(line[i]) * value_of(x[i]);
    float sum =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (int k = 16; k != 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (lane == 0) atomicAdd(&y[row], sum);
  }
}

template <class T>
rival_result multiply(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                      const array_file& vector, unsigned threads, std::uint64_t piece_bytes) {
  const owned_file a(matrix.path), x(vector.path);
  std::vector<char> numbers(columns * sizeof(T));
  x.read(numbers.data(), numbers.size(), vector.offset);
  const rival::device_numbers<T> xs(columns);
  const rival::device_numbers<float> ys(rows);
  check(cudaMemcpy(xs.data(), numbers.data(), numbers.size(), cudaMemcpyHostToDevice),
        "cudaMemcpy");

  // A piece is some whole rows, or a part of one row.
  const std::uint64_t in_piece = piece_bytes / sizeof(T),
                      piece_columns = std::min(columns, in_piece);
  const std::uint64_t cuts = ceiling(columns, piece_columns);
  const std::uint64_t piece_rows = cuts == 1 ? std::max<std::uint64_t>(in_piece / columns, 1) : 1;
  const std::uint64_t pieces = ceiling(rows, piece_rows) * cuts;
  std::atomic<std::uint64_t> next{0};
  std::vector<std::unique_ptr<rival::half_buffer>> buffers;
  for (unsigned t = 0; t < 2 * threads; ++t)
    buffers.push_back(std::make_unique<rival::half_buffer>(piece_bytes));
  const auto start = std::chrono::steady_clock::now();
  job::in_threads(threads, [&](std::size_t t) {
    const rival::half_buffer* const own[] = {buffers[2 * t].get(), buffers[2 * t + 1].get()};
    for (unsigned turn = 0;; ++turn) {
      const std::uint64_t i = next++;
      if (i >= pieces) break;
      const std::uint64_t row = i / cuts * piece_rows, column = i % cuts * piece_columns;
      const std::uint64_t n = std::min(piece_rows, rows - row),
                          width = std::min(piece_columns, columns - column);
      const std::uint64_t bytes = n * width * sizeof(T);
      const rival::half_buffer& b = *own[turn % 2];
      b.wait();
      a.read(b.pinned, bytes, matrix.offset + (row * columns + column) * sizeof(T));
      check(cudaMemcpyAsync(b.device, b.pinned, bytes, cudaMemcpyHostToDevice, b.stream),
            "cudaMemcpyAsync");
      multiply_rows<<<264, 256, 0, b.stream>>>(reinterpret_cast<const T*>(b.device),
                                               xs.data() + column, ys.data() + row, n, width);
      check(cudaGetLastError(), "launch");
    }
    for (const rival::half_buffer* b : own) b->wait();
  });
  std::vector<float> y(rows);
  check(cudaMemcpy(y.data(), ys.data(), rows * sizeof(float), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return {std::move(y),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace

rival_result matvec_by_pipeline(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                                const array_file& vector, unsigned threads,
                                std::uint64_t piece_bytes) {
  return matrix.type == element::float32
             ? multiply<float>(matrix, rows, columns, vector, threads, piece_bytes)
             : multiply<__nv_bfloat16>(matrix, rows, columns, vector, threads, piece_bytes);
}
#else
rival_result matvec_by_pipeline(const array_file&, std::uint64_t, std::uint64_t, const array_file&,
                                unsigned, std::uint64_t) {
  throw error(ENOTSUP, "CUDA: this library was built without it");
}
#endif

}  // namespace gpufs::linear

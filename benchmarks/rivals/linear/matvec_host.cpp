#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/arithmetic.cuh"
#include "rivals/host.hpp"
#include "rivals/linear/rivals.hpp"
#include "tile/numbers.cuh"

namespace gpufs::linear {
namespace {

// Independent sums, so that the compiler uses vectors of any width.
template <class T>
inline __attribute__((always_inline)) float dot(const T* a, const T* b, std::uint64_t count) {
  constexpr int lanes = 64;
  float sums[lanes] = {};
  std::uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int k = 0; k < lanes; ++k) sums[k] += value_of(a[i + k]) * value_of(b[i + k]);
  }
  float sum = 0;
  for (; i < count; ++i) sum += value_of(a[i]) * value_of(b[i]);
  for (const float s : sums) sum += s;
  return sum;
}

GPUFS_FOR_EACH_PROCESSOR float dot_of(const float* a, const float* b, std::uint64_t count) {
  return dot(a, b, count);
}
GPUFS_FOR_EACH_PROCESSOR float dot_of(const bfloat16* a, const bfloat16* b, std::uint64_t count) {
  return dot(a, b, count);
}

template <class T>
rival_result multiply(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                      const array_file& vector, unsigned threads) {
  const auto start = std::chrono::steady_clock::now();
  const rival::mapped_file a(matrix.path, matrix.offset, rows * columns * sizeof(T));
  const rival::mapped_file x(vector.path, vector.offset, columns * sizeof(T));
  // If there are fewer rows than threads, rows are divided.
  const std::uint64_t parts = rows < threads ? ceiling(threads, rows) : 1;
  const std::uint64_t part_columns = ceiling(columns, parts);
  std::vector<float> sums(rows * parts), y(rows);
  const auto work = [&](std::uint64_t first, std::uint64_t end) {
    populate(a.numbers<T>() + first / parts * columns,
             a.numbers<T>() + ceiling(end, parts) * columns);
    for (std::uint64_t i = first; i < end; ++i) {
      const std::uint64_t begin = std::min(i % parts * part_columns, columns);
      sums[i] = dot_of(a.numbers<T>() + i / parts * columns + begin, x.numbers<T>() + begin,
                       std::min(part_columns, columns - begin));
    }
  };
  std::vector<std::jthread> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back(work, sums.size() * t / threads, sums.size() * (t + 1) / threads);
  workers.clear();
  for (std::uint64_t i = 0; i < sums.size(); ++i) y[i / parts] += sums[i];
  return {std::move(y),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace

rival_result matvec_on_host(const array_file& matrix, std::uint64_t rows, std::uint64_t columns,
                            const array_file& vector, unsigned threads) {
  return matrix.type == element::float32
             ? multiply<float>(matrix, rows, columns, vector, threads)
             : multiply<bfloat16>(matrix, rows, columns, vector, threads);
}

}  // namespace gpufs::linear

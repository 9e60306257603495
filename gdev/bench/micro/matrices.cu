/** LUD and NW: a matrix whose tiles wait for tiles before them. */
#include <cmath>

#include "bench/memory.hpp"
#include "bench/micro/workload.hpp"

namespace gdev_bench {
namespace {

constexpr unsigned tile = 32;

// LU decomposition in tiles, without pivots, in place: the unit lower triangle below the diagonal.
// A step decomposes the tile on the diagonal at `first`, then the row and the column of tiles that
// begin there, and then changes what lies to the right of and below these.

/** One block of `tile` threads; a thread has a row. */
__global__ void decompose_diagonal(float* matrix, std::size_t side, std::size_t first) {
  __shared__ float part[tile][tile + 1];
  const unsigned own = threadIdx.x;
  float* const corner = matrix + first * side + first;
  for (unsigned i = 0; i < tile; ++i) part[i][own] = corner[i * side + own];
  __syncthreads();
  for (unsigned k = 0; k < tile; ++k) {
    if (own > k) {
      part[own][k] /= part[k][k];
      for (unsigned i = k + 1; i < tile; ++i) part[own][i] -= part[own][k] * part[k][i];
    }
    __syncthreads();
  }
  for (unsigned i = 0; i < tile; ++i) corner[i * side + own] = part[i][own];
}

/**
 * Blocks of `tile` threads. Block (x, 0) changes the tile x + 1 places to the right of the diagonal,
 * where a thread has a column; block (x, 1) the one as far below it, where a thread has a row.
 */
__global__ void decompose_edges(float* matrix, std::size_t side, std::size_t first) {
  __shared__ float diagonal[tile][tile + 1];
  __shared__ float part[tile][tile + 1];
  const unsigned own = threadIdx.x;
  const std::size_t away = (std::size_t{blockIdx.x} + 1) * tile;
  const bool is_right = blockIdx.y == 0;
  const float* const corner = matrix + first * side + first;
  float* const other =
      matrix + (is_right ? first * side + first + away : (first + away) * side + first);
  for (unsigned i = 0; i < tile; ++i) {
    diagonal[i][own] = corner[i * side + own];
    part[i][own] = other[i * side + own];
  }
  __syncthreads();
  for (unsigned i = 0; i < tile; ++i) {
    if (is_right) {
      for (unsigned k = 0; k < i; ++k) part[i][own] -= diagonal[i][k] * part[k][own];
    } else {
      for (unsigned k = 0; k < i; ++k) part[own][i] -= part[own][k] * diagonal[k][i];
      part[own][i] /= diagonal[i][i];
    }
  }
  __syncthreads();
  for (unsigned i = 0; i < tile; ++i) other[i * side + own] = part[i][own];
}

/** A block of `tile` x `tile` threads changes one tile, a thread one element. */
__global__ void change_rest(float* matrix, std::size_t side, std::size_t first) {
  __shared__ float left[tile][tile];
  __shared__ float above[tile][tile];
  const unsigned x = threadIdx.x;
  const unsigned y = threadIdx.y;
  const std::size_t row = first + (std::size_t{blockIdx.y} + 1) * tile + y;
  const std::size_t column = first + (std::size_t{blockIdx.x} + 1) * tile + x;
  left[y][x] = matrix[row * side + first + x];
  above[y][x] = matrix[(first + y) * side + column];
  __syncthreads();
  float sum = 0;
  for (unsigned k = 0; k < tile; ++k) sum += left[y][k] * above[k][x];
  matrix[row * side + column] -= sum;
}

class lu_decomposition : public workload {
 public:
  /** Makes a matrix whose diagonal dominates, so that no pivots are needed. */
  explicit lu_decomposition(std::size_t side)
      : side_(side), matrix_(side * side), result_(side * side) {
    random_numbers random(1);
    for (float& one : matrix_) one = random.fraction() - 0.5F;
    for (std::size_t i = 0; i < side; ++i) matrix_[i * side + i] += static_cast<float>(side) / 2;
  }

  void run() override {
    const device_array<float> matrix(matrix_);
    for (std::size_t first = 0; first < side_; first += tile) {
      const unsigned left = (side_ - first) / tile - 1;
      decompose_diagonal<<<1, tile>>>(matrix.data(), side_, first);
      if (left != 0) {
        decompose_edges<<<dim3(left, 2), tile>>>(matrix.data(), side_, first);
        change_rest<<<dim3(left, left), dim3(tile, tile)>>>(matrix.data(), side_, first);
      }
    }
    check_launch();
    matrix.copy_to(result_);
  }
  void forget() override { std::fill(result_.begin(), result_.end(), 0.0F); }
  /** Compares L (U x) with the matrix times x, for random x. */
  [[nodiscard]] bool is_right() const override {
    random_numbers random(2);
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<double> x(side_);
      std::generate(x.begin(), x.end(), [&] { return random.fraction() - 0.5; });
      std::vector<double> expected(side_);
      std::vector<double> upper(side_);
      for (std::size_t row = 0; row < side_; ++row) {
        expected[row] = dot(matrix_, row, x, 0, side_);
        upper[row] = dot(result_, row, x, row, side_);
      }
      for (std::size_t row = 0; row < side_; ++row) {
        const double found = upper[row] + dot(result_, row, upper, 0, row);
        // The diagonal, side / 2, times x of about 1 / 4 is what rounding errors are relative to.
        if (!(std::abs(found - expected[row]) <= 1e-5 * static_cast<double>(side_))) return false;
      }
    }
    return true;
  }
  [[nodiscard]] std::size_t bytes() const override { return 2 * result_.size() * sizeof(float); }

 private:
  [[nodiscard]] double dot(const std::vector<float>& matrix, std::size_t row,
                           const std::vector<double>& x, std::size_t begin, std::size_t end) const {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += matrix[row * side_ + i] * x[i];
    return sum;
  }

  std::size_t side_;
  std::vector<float> matrix_, result_;
};

// Needleman-Wunsch: the scores of the best alignments of all prefixes of two sequences. Row and
// column 0 stand for empty prefixes.

constexpr int letters = 24;
constexpr int gap_penalty = 10;

__host__ __device__ int best_of(int both, int above, int left) {
  const int gap = (above > left ? above : left) - gap_penalty;
  return both > gap ? both : gap;
}

__global__ void fill_borders(int* scores, std::size_t length) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i <= length) {
    scores[i] = -gap_penalty * static_cast<int>(i);
    scores[i * (length + 1)] = -gap_penalty * static_cast<int>(i);
  }
}

/**
 * Computes the tiles of one antidiagonal: tile row + tile column == `diagonal`, from tile row
 * `first_row` on. A block of `tile` threads has a tile; a thread has a row of it, and computes the
 * cell of the current antidiagonal in it.
 */
__global__ void align(const std::uint8_t* down, const std::uint8_t* across, const int* similarity,
                      int* scores, std::size_t length, std::size_t diagonal,
                      std::size_t first_row) {
  __shared__ int part[tile + 1][tile + 1];
  const unsigned own = threadIdx.x;
  const std::size_t tile_row = first_row + blockIdx.x;
  const std::size_t row = tile_row * tile;
  const std::size_t column = (diagonal - tile_row) * tile;
  const std::size_t pitch = length + 1;
  int* const corner = scores + row * pitch + column;
  part[0][own + 1] = corner[own + 1];
  part[own + 1][0] = corner[(own + 1) * pitch];
  if (own == 0) {
    part[0][0] = corner[0];
  }
  __syncthreads();
  const int letter = down[row + own];
  for (unsigned i = 0; i < 2 * tile - 1; ++i) {
    if (own <= i && i - own < tile) {
      const unsigned x = i - own;
      const int both = part[own][x] + similarity[letter * letters + across[column + x]];
      part[own + 1][x + 1] = best_of(both, part[own][x + 1], part[own + 1][x]);
    }
    __syncthreads();
  }
  for (unsigned i = 0; i < tile; ++i) corner[(i + 1) * pitch + own + 1] = part[i + 1][own + 1];
}

class needleman_wunsch : public workload {
 public:
  explicit needleman_wunsch(std::size_t length)
      : length_(length), down_(length), across_(length), similarity_(letters * letters),
        result_((length + 1) * (length + 1)) {
    random_numbers random(1);
    for (std::uint8_t& one : down_) one = static_cast<std::uint8_t>(random.below(letters));
    for (std::uint8_t& one : across_) one = static_cast<std::uint8_t>(random.below(letters));
    for (int& one : similarity_) one = static_cast<int>(random.below(9)) - 4;
    for (int i = 0; i < letters; ++i) similarity_[i * letters + i] = 8;
  }

  void run() override {
    const device_array<std::uint8_t> down(down_);
    const device_array<std::uint8_t> across(across_);
    const device_array<int> similarity(similarity_);
    const device_array<int> scores(result_.size());
    fill_borders<<<divide_up(length_ + 1, 256), 256>>>(scores.data(), length_);
    const std::size_t tiles = length_ / tile;
    for (std::size_t diagonal = 0; diagonal < 2 * tiles - 1; ++diagonal) {
      const std::size_t first_row = diagonal < tiles ? 0 : diagonal - tiles + 1;
      const unsigned count = std::min(diagonal, tiles - 1) - first_row + 1;
      align<<<count, tile>>>(down.data(), across.data(), similarity.data(), scores.data(), length_,
                             diagonal, first_row);
    }
    check_launch();
    scores.copy_to(result_);
  }
  void forget() override { std::fill(result_.begin(), result_.end(), 0); }
  [[nodiscard]] bool is_right() const override {
    std::vector<int> above(length_ + 1);
    for (std::size_t i = 0; i <= length_; ++i) above[i] = -gap_penalty * static_cast<int>(i);
    std::vector<int> now(length_ + 1);
    for (std::size_t row = 0; row <= length_; ++row) {
      if (!std::equal(above.begin(), above.end(), result_.begin() + row * (length_ + 1))) {
        return false;
      }
      if (row == length_) break;
      now[0] = above[0] - gap_penalty;
      for (std::size_t i = 0; i < length_; ++i) {
        const int both = above[i] + similarity_[down_[row] * letters + across_[i]];
        now[i + 1] = best_of(both, above[i + 1], now[i]);
      }
      above.swap(now);
    }
    return true;
  }
  [[nodiscard]] std::size_t bytes() const override {
    return 2 * length_ + (similarity_.size() + result_.size()) * sizeof(int);
  }

 private:
  std::size_t length_;
  std::vector<std::uint8_t> down_, across_;
  std::vector<int> similarity_, result_;
};

}  // namespace

std::unique_ptr<workload> make_lu_decomposition(std::size_t side) {
  return std::make_unique<lu_decomposition>(side);
}
std::unique_ptr<workload> make_needleman_wunsch(std::size_t length) {
  return std::make_unique<needleman_wunsch>(length);
}

}  // namespace gdev_bench

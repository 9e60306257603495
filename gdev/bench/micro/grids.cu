/** HS, SRAD and SRAD2: a grid of numbers in which each step computes a cell from its neighbours. */
#include <cmath>

#include "bench/memory.hpp"
#include "bench/micro/compare.hpp"
#include "bench/micro/workload.hpp"

namespace gdev_bench {
namespace {

/** The neighbours of a cell. Past the edge lies the cell itself. */
struct place {
  std::size_t here, north, south, west, east;

  __host__ __device__ place(std::size_t row, std::size_t column, std::size_t side)
      : here(row * side + column), north(row == 0 ? here : here - side),
        south(row + 1 == side ? here : here + side), west(column == 0 ? here : here - 1),
        east(column + 1 == side ? here : here + 1) {}
};

/** Calls `compute(row, column)` for the thread's cell, if it has one. */
template <typename Compute>
__device__ void for_own_cell(std::size_t side, const Compute& compute) {
  const std::size_t column = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t row = std::size_t{blockIdx.y} * blockDim.y + threadIdx.y;
  if (row < side && column < side) {
    compute(row, column);
  }
}

/** Calls `compute(row, column)` for all cells, on the processors. */
template <typename Compute>
void for_all_cells(std::size_t side, const Compute& compute) {
  in_parallel(side, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t column = 0; column < side; ++column) compute(row, column);
    }
  });
}

dim3 block_shape() { return {32, 8}; }
dim3 grid_shape(std::size_t side) {
  return {static_cast<unsigned>(divide_up(side, 32)), static_cast<unsigned>(divide_up(side, 8))};
}

/** Returns `side` * `side` random numbers of [low, high). */
std::vector<float> random_grid(std::size_t side, std::uint64_t seed, float low, float high) {
  random_numbers random(seed);
  std::vector<float> made(side * side);
  std::generate(made.begin(), made.end(), [&] { return low + (high - low) * random.fraction(); });
  return made;
}

/**
 * A step of the temperature of a chip: heat flows to the neighbours and to the ambient air, and
 * comes from the power that the cell takes.
 */
__host__ __device__ float next_temperature(const float* now, const float* power, place at) {
  constexpr float ambient = 80;
  constexpr float to_neighbours = 0.1F;
  constexpr float to_ambient = 0.002F;
  constexpr float warming = 0.5F;
  const float own = now[at.here];
  return own + warming * power[at.here] +
         to_neighbours * (now[at.north] + now[at.south] - 2 * own) +
         to_neighbours * (now[at.west] + now[at.east] - 2 * own) + to_ambient * (ambient - own);
}

__global__ void heat(const float* now, const float* power, float* next, std::size_t side) {
  for_own_cell(side, [&](std::size_t row, std::size_t column) {
    const place at(row, column, side);
    next[at.here] = next_temperature(now, power, at);
  });
}

class hotspot : public workload {
 public:
  explicit hotspot(std::size_t side)
      : side_(side), start_(random_grid(side, 1, 320, 340)), power_(random_grid(side, 2, 0, 1)),
        result_(start_.size()) {}

  void run() override {
    const device_array<float> power(power_);
    device_array<float> now(start_);
    device_array<float> next(start_.size());
    float* from = now.data();
    float* to = next.data();
    for (int i = 0; i < steps; ++i) {
      heat<<<grid_shape(side_), block_shape()>>>(from, power.data(), to, side_);
      check_launch();
      std::swap(from, to);
    }
    (from == now.data() ? now : next).copy_to(result_);
  }
  void forget() override { std::fill(result_.begin(), result_.end(), 0.0F); }
  [[nodiscard]] bool is_right() const override {
    std::vector<float> now = start_;
    std::vector<float> next(now.size());
    for (int i = 0; i < steps; ++i) {
      for_all_cells(side_, [&](std::size_t row, std::size_t column) {
        const place at(row, column, side_);
        next[at.here] = next_temperature(now.data(), power_.data(), at);
      });
      now.swap(next);
    }
    return are_close(result_, now, 0, 1e-4F);
  }
  [[nodiscard]] std::size_t bytes() const override { return 3 * result_.size() * sizeof(float); }

 private:
  static constexpr int steps = 100;

  std::size_t side_;
  std::vector<float> start_, power_, result_;
};

// Speckle reducing anisotropic diffusion (Yu and Acton, 2002). Where a cell varies as much as
// speckle does, its brightness flows to the neighbours; at edges it does not.

constexpr float rate = 0.5F;

/** Returns how well brightness flows out of a cell: 0 to 1. `speckle` is the variation of noise. */
__host__ __device__ float diffusion(const float* image, place at, float speckle) {
  const float own = image[at.here];
  const float north = image[at.north] - own;
  const float south = image[at.south] - own;
  const float west = image[at.west] - own;
  const float east = image[at.east] - own;
  const float gradient = (north * north + south * south + west * west + east * east) / (own * own);
  const float laplacian = (north + south + west + east) / own;
  const float root = 1 + 0.25F * laplacian;
  const float variation = (0.5F * gradient - 0.0625F * laplacian * laplacian) / (root * root);
  const float conductance = 1 / (1 + (variation - speckle) / (speckle * (1 + speckle)));
  return fminf(fmaxf(conductance, 0), 1);
}

/** Returns the brightness of a cell after a step. `flow` holds the diffusion of each cell. */
__host__ __device__ float diffused(const float* image, const float* flow, place at) {
  const float own = image[at.here];
  const float divergence = flow[at.here] * (image[at.north] - own + image[at.west] - own) +
                           flow[at.south] * (image[at.south] - own) +
                           flow[at.east] * (image[at.east] - own);
  return own + 0.25F * rate * divergence;
}

__global__ void find_flow(const float* image, const float* speckle, float* flow, std::size_t side) {
  for_own_cell(side, [&](std::size_t row, std::size_t column) {
    const place at(row, column, side);
    flow[at.here] = diffusion(image, at, *speckle);
  });
}

__global__ void diffuse(const float* image, const float* flow, float* next, std::size_t side) {
  for_own_cell(side, [&](std::size_t row, std::size_t column) {
    const place at(row, column, side);
    next[at.here] = diffused(image, flow, at);
  });
}

/** Returns the squared coefficient of variation of `count` numbers. */
__host__ __device__ float speckle_of(double sum, double squares, std::size_t count) {
  const double mean = sum / static_cast<double>(count);
  return static_cast<float>((squares / static_cast<double>(count) - mean * mean) / (mean * mean));
}

constexpr unsigned sum_threads = 256;
constexpr unsigned sum_blocks = 256;

/** Adds the two numbers of all threads of a block. Thread 0 gets the sums. */
__device__ double2 block_sums(double2 own) {
  __shared__ double2 all[sum_threads];
  all[threadIdx.x] = own;
  __syncthreads();
  for (unsigned half = sum_threads / 2; half != 0; half /= 2) {
    if (threadIdx.x < half) {
      all[threadIdx.x].x += all[threadIdx.x + half].x;
      all[threadIdx.x].y += all[threadIdx.x + half].y;
    }
    __syncthreads();
  }
  return all[0];
}

/** Each block adds up a part of the image: the sum and the sum of the squares. */
__global__ void add_up(const float* image, std::size_t count, double2* partial) {
  double2 own = {0, 0};
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    own.x += image[i];
    own.y += static_cast<double>(image[i]) * image[i];
  }
  own = block_sums(own);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = own;
  }
}

/** One block adds up what the blocks of add_up() found. */
__global__ void find_speckle(const double2* partial, std::size_t count, float* speckle) {
  const double2 sums = block_sums(partial[threadIdx.x]);
  if (threadIdx.x == 0) {
    *speckle = speckle_of(sums.x, sums.y, count);
  }
}
static_assert(sum_blocks == sum_threads, "find_speckle() has a thread for each block of add_up()");

__global__ void extract(float* image, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    image[i] = expf(image[i] / 255);
  }
}

__global__ void compress(float* image, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    image[i] = logf(image[i]) * 255;
  }
}

/** A program of diffusion: what the two have in common. */
class srad : public workload {
 public:
  srad(std::size_t side, std::vector<float> image)
      : side_(side), start_(std::move(image)), result_(start_.size()) {}

  void forget() override { std::fill(result_.begin(), result_.end(), 0.0F); }

 protected:
  /** Runs `steps` steps on the GPU. `measure(image)` stores the speckle for the next step. */
  template <typename Measure>
  void run_steps(int steps, device_array<float>& image, const float* speckle,
                 const Measure& measure) {
    device_array<float> flow(start_.size());
    device_array<float> next(start_.size());
    float* from = image.data();
    float* to = next.data();
    for (int i = 0; i < steps; ++i) {
      measure(from);
      find_flow<<<grid_shape(side_), block_shape()>>>(from, speckle, flow.data(), side_);
      diffuse<<<grid_shape(side_), block_shape()>>>(from, flow.data(), to, side_);
      check_launch();
      std::swap(from, to);
    }
    if (from != image.data()) {
      check(cudaMemcpy(image.data(), from, start_.size() * sizeof(float), cudaMemcpyDeviceToDevice),
            "cudaMemcpy");
    }
  }

  /** Does the same steps on the processors. `measure(image)` returns the speckle. */
  template <typename Measure>
  void expect_steps(int steps, std::vector<float>& image, const Measure& measure) const {
    std::vector<float> flow(image.size());
    std::vector<float> next(image.size());
    for (int i = 0; i < steps; ++i) {
      const float speckle = measure(image);
      for_all_cells(side_, [&](std::size_t row, std::size_t column) {
        const place at(row, column, side_);
        flow[at.here] = diffusion(image.data(), at, speckle);
      });
      for_all_cells(side_, [&](std::size_t row, std::size_t column) {
        const place at(row, column, side_);
        next[at.here] = diffused(image.data(), flow.data(), at);
      });
      image.swap(next);
    }
  }

  std::size_t side_;
  std::vector<float> start_, result_;
};

/** An ultrasound image of bright discs with speckle. All steps are on the GPU. */
class srad_image : public srad {
 public:
  explicit srad_image(std::size_t side) : srad(side, speckled_discs(side)) {}

  void run() override {
    const std::size_t count = start_.size();
    const device_array<double2> partial(sum_blocks);
    const device_array<float> speckle(1);
    device_array<float> image(start_);
    extract<<<divide_up(count, 256), 256>>>(image.data(), count);
    run_steps(steps, image, speckle.data(), [&](const float* now) {
      add_up<<<sum_blocks, sum_threads>>>(now, count, partial.data());
      find_speckle<<<1, sum_threads>>>(partial.data(), count, speckle.data());
    });
    compress<<<divide_up(count, 256), 256>>>(image.data(), count);
    check_launch();
    image.copy_to(result_);
  }
  [[nodiscard]] bool is_right() const override {
    std::vector<float> image = start_;
    for (float& one : image) one = std::exp(one / 255);
    expect_steps(steps, image, [](const std::vector<float>& now) {
      double sum = 0;
      double squares = 0;
      for (const float one : now) {
        sum += one;
        squares += static_cast<double>(one) * one;
      }
      return speckle_of(sum, squares, now.size());
    });
    for (float& one : image) one = std::log(one) * 255;
    return are_close(result_, image, 0.05F, 1e-3F);
  }
  [[nodiscard]] std::size_t bytes() const override { return 2 * result_.size() * sizeof(float); }

 private:
  static constexpr int steps = 100;

  static std::vector<float> speckled_discs(std::size_t side) {
    std::vector<float> made = random_grid(side, 1, 0.6F, 1);
    const std::size_t field = std::max<std::size_t>(side / 8, 1);
    for (std::size_t i = 0; i < made.size(); ++i) {
      const double y = static_cast<double>(i / side % field) / static_cast<double>(field) - 0.5;
      const double x = static_cast<double>(i % side % field) / static_cast<double>(field) - 0.5;
      made[i] *= x * x + y * y < 0.1 ? 220 : 80;
    }
    return made;
  }
};

/** Random numbers as image. The host finds the speckle in a corner of it before each step. */
class srad_random : public srad {
 public:
  explicit srad_random(std::size_t side)
      : srad(side, random_grid(side, 1, 0, 1)), corner_(std::min<std::size_t>(side, 128)) {
    for (float& one : start_) one = std::exp(one);
  }

  void run() override {
    device_array<float> speckle(1);
    device_array<float> image(start_);
    std::vector<float> seen(corner_ * corner_);
    run_steps(steps, image, speckle.data(), [&](const float* now) {
      const std::size_t row = corner_ * sizeof(float);
      check(cudaMemcpy2D(seen.data(), row, now, side_ * sizeof(float), row, corner_,
                         cudaMemcpyDeviceToHost),
            "cudaMemcpy2D");
      const float found = speckle_in(seen, corner_);
      speckle.copy_from(&found);
    });
    image.copy_to(result_);
  }
  [[nodiscard]] bool is_right() const override {
    std::vector<float> image = start_;
    expect_steps(steps, image,
                 [&](const std::vector<float>& now) { return speckle_in(now, side_); });
    return are_close(result_, image, 0, 1e-3F);
  }
  [[nodiscard]] std::size_t bytes() const override {
    return (2 * result_.size() + steps * (corner_ * corner_ + 1)) * sizeof(float);
  }

 private:
  static constexpr int steps = 10;

  /** Returns the speckle in the corner of an image whose rows have `pitch` numbers. */
  [[nodiscard]] float speckle_in(const std::vector<float>& image, std::size_t pitch) const {
    double sum = 0;
    double squares = 0;
    for (std::size_t row = 0; row < corner_; ++row) {
      for (std::size_t column = 0; column < corner_; ++column) {
        const double one = image[row * pitch + column];
        sum += one;
        squares += one * one;
      }
    }
    return speckle_of(sum, squares, corner_ * corner_);
  }

  std::size_t corner_;
};

}  // namespace

std::unique_ptr<workload> make_hotspot(std::size_t side) { return std::make_unique<hotspot>(side); }
std::unique_ptr<workload> make_srad_image(std::size_t side) {
  return std::make_unique<srad_image>(side);
}
std::unique_ptr<workload> make_srad_random(std::size_t side) {
  return std::make_unique<srad_random>(side);
}

}  // namespace gdev_bench

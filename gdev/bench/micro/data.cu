/** BP, BFS and NN: much data, and little computation for each piece of it. */
#include <cmath>
#include <limits>

#include "bench/memory.hpp"
#include "bench/micro/compare.hpp"
#include "bench/micro/workload.hpp"

namespace gdev_bench {
namespace {

// Back propagation: one training step of a network of many inputs, 16 hidden units and one output.

constexpr unsigned hidden_units = 16;
constexpr unsigned rows = 16;  // inputs that a block looks at together
constexpr unsigned forward_blocks = 512;
constexpr float learning_rate = 0.3F;
constexpr float momentum = 0.3F;
constexpr double wanted_output = 0.1;

/** Adds up input times weight for each hidden unit; block i does so for a part, into sums[i]. */
__global__ void forward(const float* inputs, const float* weights, std::size_t count, float* sums) {
  __shared__ float part[rows][hidden_units];
  const unsigned unit = threadIdx.x;
  const unsigned row = threadIdx.y;
  float own = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * rows + row; i < count;
       i += std::size_t{gridDim.x} * rows) {
    own += inputs[i] * weights[i * hidden_units + unit];
  }
  part[row][unit] = own;
  __syncthreads();
  if (row == 0) {
    for (unsigned i = 1; i < rows; ++i) own += part[i][unit];
    sums[blockIdx.x * hidden_units + unit] = own;
  }
}

/** Changes each weight by its part in the error, and by a part of its last change. */
__global__ void adjust(const float* inputs, const float* errors, std::size_t count, float* weights,
                       float* changes) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count * hidden_units) {
    const float change =
        learning_rate * errors[i % hidden_units] * inputs[i / hidden_units] + momentum * changes[i];
    weights[i] += change;
    changes[i] = change;
  }
}

class back_propagation : public workload {
 public:
  explicit back_propagation(std::size_t inputs)
      : inputs_(inputs), weights_(inputs * hidden_units), changes_(weights_.size()),
        output_weights_(hidden_units), new_weights_(weights_.size()),
        new_changes_(weights_.size()) {
    random_numbers random(1);
    for (float& one : inputs_) one = random.fraction();
    // So that the sums of the hidden units are about 1, where their output depends on the sum.
    const float scale = 2 / std::sqrt(static_cast<float>(inputs));
    for (float& one : weights_) one = scale * (random.fraction() - 0.5F);
    for (float& one : changes_) one = 0.01F * (random.fraction() - 0.5F);
    for (float& one : output_weights_) one = random.fraction() + 0.5F;
  }

  void run() override {
    const device_array<float> inputs(inputs_);
    const device_array<float> weights(weights_);
    const device_array<float> changes(changes_);
    const device_array<float> sums(forward_blocks * hidden_units);
    forward<<<forward_blocks, dim3(hidden_units, rows)>>>(inputs.data(), weights.data(),
                                                          inputs_.size(), sums.data());
    check_launch();
    std::vector<float> found(sums.size());
    sums.copy_to(found);
    std::vector<double> totals(hidden_units);
    for (std::size_t i = 0; i < found.size(); ++i) totals[i % hidden_units] += found[i];
    const device_array<float> errors(errors_of(totals));
    adjust<<<divide_up(weights_.size(), 256), 256>>>(inputs.data(), errors.data(), inputs_.size(),
                                                     weights.data(), changes.data());
    check_launch();
    weights.copy_to(new_weights_);
    changes.copy_to(new_changes_);
  }
  void forget() override {
    std::fill(new_weights_.begin(), new_weights_.end(), 0.0F);
    std::fill(new_changes_.begin(), new_changes_.end(), 0.0F);
  }
  [[nodiscard]] bool is_right() const override {
    std::vector<double> totals(hidden_units);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      totals[i % hidden_units] += static_cast<double>(inputs_[i / hidden_units]) * weights_[i];
    }
    const std::vector<float> errors = errors_of(totals);
    std::vector<float> weights = weights_;
    std::vector<float> changes = changes_;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      changes[i] = learning_rate * errors[i % hidden_units] * inputs_[i / hidden_units] +
                   momentum * changes_[i];
      weights[i] += changes[i];
    }
    return are_close(new_weights_, weights, 1e-6F, 1e-4F) &&
           are_close(new_changes_, changes, 1e-6F, 1e-4F);
  }
  [[nodiscard]] std::size_t bytes() const override {
    return (inputs_.size() + 4 * weights_.size() + (forward_blocks + 1) * hidden_units) *
           sizeof(float);
  }

 private:
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  /** Returns the part of each hidden unit in the error, from the sums of their inputs. */
  [[nodiscard]] std::vector<float> errors_of(const std::vector<double>& totals) const {
    double output = 0;
    for (unsigned i = 0; i < hidden_units; ++i) output += sigmoid(totals[i]) * output_weights_[i];
    output = sigmoid(output);
    const double error = output * (1 - output) * (wanted_output - output);
    std::vector<float> made(hidden_units);
    for (unsigned i = 0; i < hidden_units; ++i) {
      const double own = sigmoid(totals[i]);
      made[i] = static_cast<float>(own * (1 - own) * output_weights_[i] * error);
    }
    return made;
  }

  std::vector<float> inputs_, weights_, changes_, output_weights_;
  std::vector<float> new_weights_, new_changes_;
};

// Breadth-first search: the distances of all nodes of a random graph from node 0. The edges of node
// i are neighbours[offsets[i]] to neighbours[offsets[i + 1] - 1].

constexpr int unreached = -1;

/** Takes the nodes of a queue, and puts their neighbours that have no distance into the next. */
__global__ void visit(const std::uint32_t* offsets, const std::uint32_t* neighbours,
                      const std::uint32_t* queue, std::uint32_t count, int distance, int* distances,
                      std::uint32_t* next, std::uint32_t* next_count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  const std::uint32_t node = queue[i];
  for (std::uint32_t edge = offsets[node]; edge < offsets[node + 1]; ++edge) {
    const std::uint32_t other = neighbours[edge];
    // One thread alone finds the node unreached. Nothing but the end of the kernel orders the rest.
    if (atomicCAS(&distances[other], unreached, distance) == unreached) {
      next[atomicAdd(next_count, 1U)] = other;
    }
  }
}

class breadth_first_search : public workload {
 public:
  explicit breadth_first_search(std::size_t nodes) : result_(nodes) {
    random_numbers random(1);
    for (std::size_t i = 0; i < nodes; ++i) {
      offsets_.push_back(static_cast<std::uint32_t>(neighbours_.size()));
      for (std::size_t edges = 2 + random.below(9); edges != 0; --edges) {
        neighbours_.push_back(static_cast<std::uint32_t>(random.below(nodes)));
      }
    }
    offsets_.push_back(static_cast<std::uint32_t>(neighbours_.size()));
  }

  void run() override {
    const std::size_t nodes = result_.size();
    const device_array<std::uint32_t> offsets(offsets_);
    const device_array<std::uint32_t> neighbours(neighbours_);
    const device_array<int> distances(nodes);
    device_array<std::uint32_t> now(nodes);
    device_array<std::uint32_t> next(nodes);
    device_array<std::uint32_t> next_count(1);
    check(cudaMemset(distances.data(), 0xff, nodes * sizeof(int)), "cudaMemset");
    check(cudaMemset(distances.data(), 0, sizeof(int)), "cudaMemset");
    check(cudaMemset(now.data(), 0, sizeof(std::uint32_t)), "cudaMemset");
    std::uint32_t* from = now.data();
    std::uint32_t* to = next.data();
    std::uint32_t count = 1;
    for (int distance = 1; count != 0; ++distance) {
      check(cudaMemset(next_count.data(), 0, sizeof(std::uint32_t)), "cudaMemset");
      visit<<<divide_up(count, 256), 256>>>(offsets.data(), neighbours.data(), from, count,
                                            distance, distances.data(), to, next_count.data());
      check_launch();
      next_count.copy_to(&count, 1);
      std::swap(from, to);
    }
    distances.copy_to(result_);
  }
  void forget() override { std::fill(result_.begin(), result_.end(), unreached - 1); }
  [[nodiscard]] bool is_right() const override {
    std::vector<int> distances(result_.size(), unreached);
    std::vector<std::uint32_t> queue = {0};
    distances[0] = 0;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (std::uint32_t edge = offsets_[queue[i]]; edge < offsets_[queue[i] + 1]; ++edge) {
        const std::uint32_t other = neighbours_[edge];
        if (distances[other] == unreached) {
          distances[other] = distances[queue[i]] + 1;
          queue.push_back(other);
        }
      }
    }
    return result_ == distances;
  }
  /** Without the number that each level copies back. */
  [[nodiscard]] std::size_t bytes() const override {
    return (offsets_.size() + neighbours_.size() + result_.size()) * sizeof(int);
  }

 private:
  std::vector<std::uint32_t> offsets_, neighbours_;
  std::vector<int> result_;
};

// Nearest neighbours: the GPU computes the distance of each record, and the host selects the ten
// nearest ones.

constexpr std::size_t wanted_neighbours = 10;
constexpr int2 target = {1234, -4321};

/** Coordinates are of [-20000, 20000), so a squared distance has 32 bits. */
__host__ __device__ std::uint32_t squared_distance(int2 record) {
  const auto x = static_cast<std::uint32_t>(record.x - target.x);
  const auto y = static_cast<std::uint32_t>(record.y - target.y);
  return x * x + y * y;
}

__global__ void find_distances(const int2* records, std::size_t count, std::uint32_t* distances) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    distances[i] = squared_distance(records[i]);
  }
}

class nearest_neighbors : public workload {
 public:
  explicit nearest_neighbors(std::size_t records) : records_(records), distances_(records) {
    random_numbers random(1);
    for (int2& one : records_) {
      one.x = static_cast<int>(random.below(40'000)) - 20'000;
      one.y = static_cast<int>(random.below(40'000)) - 20'000;
    }
  }

  void run() override {
    const device_array<int2> records(records_);
    const device_array<std::uint32_t> distances(records_.size());
    find_distances<<<divide_up(records_.size(), 256), 256>>>(records.data(), records_.size(),
                                                             distances.data());
    check_launch();
    distances.copy_to(distances_);
    nearest_.assign(wanted_neighbours, std::numeric_limits<std::uint32_t>::max());
    for (const std::uint32_t one : distances_) {
      if (one < nearest_.front()) {  // a heap: the farthest one is in front
        std::pop_heap(nearest_.begin(), nearest_.end());
        nearest_.back() = one;
        std::push_heap(nearest_.begin(), nearest_.end());
      }
    }
  }
  void forget() override {
    nearest_.clear();
    std::fill(distances_.begin(), distances_.end(), 0U);
  }
  [[nodiscard]] bool is_right() const override {
    std::vector<std::uint32_t> expected(records_.size());
    std::transform(records_.begin(), records_.end(), expected.begin(), squared_distance);
    if (distances_ != expected) return false;
    expected.resize(std::max(expected.size(), wanted_neighbours),
                    std::numeric_limits<std::uint32_t>::max());
    std::partial_sort(expected.begin(), expected.begin() + wanted_neighbours, expected.end());
    expected.resize(wanted_neighbours);
    std::vector<std::uint32_t> found = nearest_;
    std::sort(found.begin(), found.end());
    return found == expected;
  }
  [[nodiscard]] std::size_t bytes() const override {
    return records_.size() * (sizeof(int2) + sizeof(std::uint32_t));
  }

 private:
  std::vector<int2> records_;
  std::vector<std::uint32_t> distances_, nearest_;
};

}  // namespace

std::unique_ptr<workload> make_back_propagation(std::size_t inputs) {
  return std::make_unique<back_propagation>(inputs);
}
std::unique_ptr<workload> make_breadth_first_search(std::size_t nodes) {
  return std::make_unique<breadth_first_search>(nodes);
}
std::unique_ptr<workload> make_nearest_neighbors(std::size_t records) {
  return std::make_unique<nearest_neighbors>(records);
}

}  // namespace gdev_bench

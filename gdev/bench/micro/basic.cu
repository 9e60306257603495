/** LOOP, MADD, MMUL, CPY, PINCPY, and allocations and launches. All results are exact. */
#include <cstring>

#include "bench/matrix_product.cuh"
#include "bench/memory.hpp"
#include "bench/micro/workload.hpp"

namespace gdev_bench {
namespace {

/** A step of a linear congruential generator: x becomes factor * x + term, modulo 2^32. */
struct step {
  std::uint32_t factor;
  std::uint32_t term;

  [[nodiscard]] std::uint32_t of(std::uint32_t value) const { return factor * value + term; }
  /** Returns the step that does what this and then `next` do. */
  [[nodiscard]] step then(step next) const { return {factor * next.factor, next.of(term)}; }
};

constexpr step one_step = {1664525, 1013904223};
constexpr unsigned loop_blocks = 256;
constexpr unsigned loop_threads = 256;

__global__ void long_loop(step by, std::size_t iterations, std::uint32_t* result) {
  std::uint32_t value = blockIdx.x * blockDim.x + threadIdx.x;
  for (std::size_t i = 0; i < iterations; ++i) {
    value = by.factor * value + by.term;
  }
  atomicXor(result, value);
}

/** Many dependent instructions; the result is the exclusive or of what all threads computed. */
class loop : public workload {
 public:
  explicit loop(std::size_t iterations) : iterations_(iterations) {}

  void run() override {
    const device_array<std::uint32_t> result(1);
    check(cudaMemset(result.data(), 0, sizeof result_), "cudaMemset");
    long_loop<<<loop_blocks, loop_threads>>>(one_step, iterations_, result.data());
    check_launch();
    result.copy_to(&result_, 1);
  }
  void forget() override { result_ = 0; }
  [[nodiscard]] bool is_right() const override {
    step all{1, 0};
    step power = one_step;  // 2^i steps
    for (std::size_t left = iterations_; left != 0; left /= 2) {
      if (left % 2 != 0) all = all.then(power);
      power = power.then(power);
    }
    std::uint32_t expected = 0;
    for (std::uint32_t i = 0; i < loop_blocks * loop_threads; ++i) expected ^= all.of(i);
    return result_ == expected;
  }
  [[nodiscard]] std::size_t bytes() const override { return sizeof result_; }

 private:
  std::size_t iterations_;
  std::uint32_t result_ = 0;
};

std::vector<std::uint32_t> random_matrix(std::size_t side, std::uint64_t seed) {
  random_numbers random(seed);
  std::vector<std::uint32_t> made(side * side);
  std::generate(made.begin(), made.end(), random);
  return made;
}

/** What both programs with two square matrices are, but for the kernel and the check. */
class matrix_program : public workload {
 public:
  explicit matrix_program(std::size_t side)
      : side_(side), a_(random_matrix(side, 1)), b_(random_matrix(side, 2)), c_(a_.size()) {}

  void run() override {
    const device_array<std::uint32_t> a(a_);
    const device_array<std::uint32_t> b(b_);
    const device_array<std::uint32_t> c(c_.size());
    compute(a.data(), b.data(), c.data());
    check_launch();
    c.copy_to(c_);
  }
  void forget() override { std::fill(c_.begin(), c_.end(), 0); }
  [[nodiscard]] std::size_t bytes() const override { return 3 * c_.size() * sizeof c_[0]; }

 protected:
  virtual void compute(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* c) const = 0;

  std::size_t side_;
  std::vector<std::uint32_t> a_, b_, c_;
};

__global__ void add(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* c,
                    std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    c[i] = a[i] + b[i];
  }
}

class matrix_add : public matrix_program {
 public:
  using matrix_program::matrix_program;

  [[nodiscard]] bool is_right() const override {
    for (std::size_t i = 0; i < c_.size(); ++i) {
      if (c_[i] != a_[i] + b_[i]) return false;
    }
    return true;
  }

 protected:
  void compute(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* c) const override {
    add<<<divide_up(c_.size(), 256), 256>>>(a, b, c, c_.size());
  }
};

/** A thread computes one element, a block one tile of c. */
__global__ void multiply(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* c,
                         std::size_t side) {
  c[own_element(side)] = product_element(a, b, side);
}

/** Matrices of integers modulo 2^32. */
class matrix_multiply : public matrix_program {
 public:
  using matrix_program::matrix_program;

  /** Freivalds' check, modulo 2^32: c x == a (b x) for random x. */
  [[nodiscard]] bool is_right() const override {
    random_numbers random(3);
    for (int trial = 0; trial < 4; ++trial) {
      std::vector<std::uint32_t> x(side_);
      std::generate(x.begin(), x.end(), random);
      if (product(c_, x) != product(a_, product(b_, x))) return false;
    }
    return true;
  }

 protected:
  void compute(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* c) const override {
    const unsigned tiles = side_ / tile;
    multiply<<<dim3(tiles, tiles), dim3(tile, tile)>>>(a, b, c, side_);
  }

 private:
  [[nodiscard]] std::vector<std::uint32_t> product(const std::vector<std::uint32_t>& matrix,
                                                   const std::vector<std::uint32_t>& x) const {
    std::vector<std::uint32_t> made(side_);
    for (std::size_t row = 0; row < side_; ++row) {
      for (std::size_t i = 0; i < side_; ++i) made[row] += matrix[row * side_ + i] * x[i];
    }
    return made;
  }
};

/** Copies to the device and back. */
template <bool is_pinned>
class copy : public workload {
 public:
  explicit copy(std::size_t mebibytes)
      : bytes_(mebibytes << 20), from_(bytes_, is_pinned), to_(bytes_, is_pinned) {
    auto* const words = static_cast<std::uint64_t*>(from_.data());
    for (std::size_t i = 0; i < bytes_ / sizeof *words; ++i) words[i] = hash(i);
    forget();
  }

  void run() override {
    const device_array<char> memory(bytes_);
    check(cudaMemcpy(memory.data(), from_.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemcpy(to_.data(), memory.data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  void forget() override { std::memset(to_.data(), 0, bytes_); }
  [[nodiscard]] bool is_right() const override {
    return std::memcmp(from_.data(), to_.data(), bytes_) == 0;
  }
  [[nodiscard]] std::size_t bytes() const override { return 2 * bytes_; }

 private:
  std::size_t bytes_;
  host_memory from_, to_;
};

/** Allocates and frees, `times` times: not a program of the paper. */
class allocations : public workload {
 public:
  static constexpr int times = 20;

  explicit allocations(std::size_t mebibytes) : bytes_(mebibytes << 20) {}

  void run() override {
    for (int i = 0; i < times; ++i) {
      const device_array<char> memory(bytes_);
      count_ += memory.data() != nullptr ? 1 : 0;
    }
  }
  void forget() override { count_ = 0; }
  [[nodiscard]] bool is_right() const override { return count_ == times; }
  [[nodiscard]] std::size_t bytes() const override { return 0; }

 private:
  std::size_t bytes_;
  int count_ = 0;
};

__global__ void store_unless_zero(std::uint32_t value, std::uint32_t* result) {
  if (value != 0) *result = value;
}

/** Launches kernels that do nothing, but for the last one: not a program of the paper. */
class launches : public workload {
 public:
  explicit launches(std::size_t count) : count_(static_cast<std::uint32_t>(count)) {}

  void run() override {
    const device_array<std::uint32_t> result(1);
    for (std::uint32_t i = 1; i <= count_; ++i) {
      store_unless_zero<<<1, 1>>>(i == count_ ? count_ : 0, result.data());
    }
    check_launch();
    result.copy_to(&result_, 1);
  }
  void forget() override { result_ = 0; }
  [[nodiscard]] bool is_right() const override { return result_ == count_; }
  [[nodiscard]] std::size_t bytes() const override { return sizeof result_; }

 private:
  std::uint32_t count_;
  std::uint32_t result_ = 0;
};

}  // namespace

std::unique_ptr<workload> make_loop(std::size_t iterations) {
  return std::make_unique<loop>(iterations);
}
std::unique_ptr<workload> make_matrix_add(std::size_t side) {
  return std::make_unique<matrix_add>(side);
}
std::unique_ptr<workload> make_matrix_multiply(std::size_t side) {
  return std::make_unique<matrix_multiply>(side);
}
std::unique_ptr<workload> make_copy(std::size_t mebibytes) {
  return std::make_unique<copy<false>>(mebibytes);
}
std::unique_ptr<workload> make_pinned_copy(std::size_t mebibytes) {
  return std::make_unique<copy<true>>(mebibytes);
}
std::unique_ptr<workload> make_allocations(std::size_t mebibytes) {
  return std::make_unique<allocations>(mebibytes);
}
std::unique_ptr<workload> make_launches(std::size_t count) {
  return std::make_unique<launches>(count);
}

}  // namespace gdev_bench

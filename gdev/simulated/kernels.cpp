#include "simulated/kernels.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <thread>

// Each does what the kernel of the same name does: in tests/kernels.cu, or
// bench/dataflow/kernels.cu.
namespace gdev::simulated {

namespace {

struct named_kernel {
  std::string_view name;
  kernel run;
  std::array<unsigned char, 6> sizes;  // a zero ends them
};

template <typename Value>
Value parameter(void** parameters, int index) noexcept {
  return *static_cast<const Value*>(parameters[index]);
}

void fill(void** parameters) {
  auto* const values = parameter<std::uint32_t*>(parameters, 0);
  std::fill_n(values, parameter<std::uint64_t>(parameters, 1),
              parameter<std::uint32_t>(parameters, 2));
}

void add(void** parameters) {
  auto* const values = parameter<std::uint32_t*>(parameters, 0);
  const auto increment = parameter<std::uint32_t>(parameters, 2);
  std::for_each_n(values, parameter<std::uint64_t>(parameters, 1),
                  [&](std::uint32_t& value) { value += increment; });
}

void sum(void** parameters) {
  const auto* const values = parameter<const std::uint32_t*>(parameters, 0);
  *parameter<std::uint64_t*>(parameters, 2) +=
      std::accumulate(values, values + parameter<std::uint64_t>(parameters, 1), std::uint64_t{0});
}

void add_matrices(void** parameters) {
  auto* const sum = parameter<std::uint32_t*>(parameters, 0);
  const auto* const left = parameter<const std::uint32_t*>(parameters, 1);
  const auto* const right = parameter<const std::uint32_t*>(parameters, 2);
  const std::size_t count = std::size_t{parameter<std::uint32_t>(parameters, 3)} *
                            parameter<std::uint32_t>(parameters, 4);
  std::transform(left, left + count, right, sum, std::plus<>());
}

void spin(void** parameters) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::nanoseconds(parameter<std::uint64_t>(parameters, 0));
  while (std::chrono::steady_clock::now() < end) {
  }
}

void meet(void** parameters) {
  auto* const arrivals = parameter<std::uint64_t*>(parameters, 0);
  const auto rank = parameter<std::uint32_t>(parameters, 1);
  const auto ranks = parameter<std::uint32_t>(parameters, 2);
  const auto number = parameter<std::uint64_t>(parameters, 3);
  std::atomic_ref(arrivals[rank]).store(number);
  for (std::uint32_t i = 0; i < ranks; ++i) {
    while (std::atomic_ref(arrivals[i]).load() < number) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void matrix_add(void** parameters) {
  const auto* const a = parameter<const std::uint32_t*>(parameters, 0);
  const auto* const b = parameter<const std::uint32_t*>(parameters, 1);
  const auto side = parameter<std::uint64_t>(parameters, 3);
  const auto salt = parameter<std::uint32_t>(parameters, 4);
  std::transform(a, a + side * side, b, parameter<std::uint32_t*>(parameters, 2),
                 [&](std::uint32_t one, std::uint32_t other) { return one + other + salt; });
}

void matrix_multiply(void** parameters) {
  const auto* const a = parameter<const std::uint32_t*>(parameters, 0);
  const auto* const b = parameter<const std::uint32_t*>(parameters, 1);
  auto* const c = parameter<std::uint32_t*>(parameters, 2);
  const auto side = parameter<std::uint64_t>(parameters, 3);
  std::fill_n(c, side * side, parameter<std::uint32_t>(parameters, 4));
  for (std::uint64_t row = 0; row < side; ++row) {
    for (std::uint64_t k = 0; k < side; ++k) {
      const std::uint32_t factor = a[row * side + k];
      for (std::uint64_t i = 0; i < side; ++i) c[row * side + i] += factor * b[k * side + i];
    }
  }
}

constexpr std::array<named_kernel, 8> kernels{{
    {"gdev_fill", fill, {8, 8, 4}},
    {"gdev_add", add, {8, 8, 4}},
    {"gdev_sum", sum, {8, 8, 8}},
    {"gdev_add_matrices", add_matrices, {8, 8, 8, 4, 4}},
    {"gdev_spin", spin, {8}},
    {"gdev_meet", meet, {8, 4, 4, 8}},
    {"gdev_matrix_add", matrix_add, {8, 8, 8, 8, 4}},
    {"gdev_matrix_multiply", matrix_multiply, {8, 8, 8, 8, 4}},
}};

}  // namespace

kernel find_kernel(std::string_view name) noexcept {
  const auto* const found = std::find_if(kernels.begin(), kernels.end(),
                                         [&](const named_kernel& one) { return one.name == name; });
  return found == kernels.end() ? nullptr : found->run;
}

const unsigned char* parameter_sizes(kernel which) noexcept {
  return std::find_if(kernels.begin(), kernels.end(),
                      [&](const named_kernel& one) { return one.run == which; })
      ->sizes.data();
}

}  // namespace gdev::simulated

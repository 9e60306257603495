/**
 * What the benchmark programs share: errors, arguments, time, and numbers of a seed.
 *
 * Exit status of every program: 0; 1 if a result was wrong; 2 if it could not run, with one line on
 * standard error.
 */
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace gdev_bench {

inline constexpr int wrong_result = 1;
inline constexpr int could_not_run = 2;

/** Ends the program with a line on standard error. */
[[noreturn]] inline void fail(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
  std::exit(could_not_run);
}

/** Ends the program if a call of CUDA failed. `what` names the call. */
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    fail(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/** Ends the program if the last launch of a kernel failed. Does not wait for the kernel. */
inline void check_launch() { check(cudaGetLastError(), "launch of a kernel"); }

/** Returns a / b, rounded up. */
__host__ __device__ constexpr std::size_t divide_up(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}

/** Returns a well-mixed number for each input: the same on the host and on the GPU. */
__host__ __device__ inline std::uint64_t hash(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/** A sequence of numbers that is the same for the same seed. */
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : next_(hash(seed)) {}

  std::uint64_t operator()() { return hash(next_++); }

  /** Returns a number of 0 to `bound` - 1. `bound` is not 0. */
  std::size_t below(std::size_t bound) { return operator()() % bound; }

  /** Returns a number of [0, 1). */
  float fraction() { return static_cast<float>(operator()() >> 40) * 0x1p-24F; }

 private:
  std::uint64_t next_;
};

/** Measures the time since it was made. */
class stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/** The arguments of a program: options `--name N`, and at most one other word. */
class arguments {
 public:
  arguments(int count, char** values) : values_(values + 1, values + count) {}

  /** Takes a number. Returns `otherwise` if it was not given. Ends the program if it is none. */
  std::size_t number(std::string_view name, std::size_t otherwise) {
    const auto found = std::find(values_.begin(), values_.end(), name);
    if (found == values_.end()) {
      return otherwise;
    }
    std::size_t value = 0;
    if (found + 1 == values_.end()) {
      fail(std::string(name) + ": a number is missing");
    }
    const std::string_view text = found[1];
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end.ec != std::errc{} || end.ptr != text.data() + text.size()) {
      fail(std::string(name) + ": not a number: " + found[1]);
    }
    values_.erase(found, found + 2);
    return value;
  }

  /** Takes the word that is left. Returns an empty text if there is none. */
  std::string word() {
    if (values_.empty() || values_.front().starts_with("--")) {
      return {};
    }
    std::string taken = values_.front();
    values_.erase(values_.begin());
    return taken;
  }

  /** Ends the program if there is an argument that nothing took. */
  void finish() const {
    if (!values_.empty()) {
      fail("not an argument of this program: " + values_.front());
    }
  }

 private:
  std::vector<std::string> values_;
};

}  // namespace gdev_bench

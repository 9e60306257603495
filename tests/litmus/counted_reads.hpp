// What the litmus tests of cached pages and open files print, and how many steps they make.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "litmus/checks.cuh"
#include "support/device.hpp"

namespace gpufs::testing::litmus {

inline std::uint64_t count_of(const atomic_word<std::uint64_t>& word) {
  return word.load_relaxed();
}

inline void print_counts(const std::string& name, const read_counts& used,
                         const read_counts& weak) {
  std::printf("litmus: %s: %llu of %llu reads wrong; weakened %llu of %llu\n", name.c_str(),
              static_cast<unsigned long long>(count_of(used.wrong)),
              static_cast<unsigned long long>(count_of(used.reads)),
              static_cast<unsigned long long>(count_of(weak.wrong)),
              static_cast<unsigned long long>(count_of(weak.reads)));
}

// Steps of a test without a budget.
inline std::uint64_t steps() { return device() == device_kind::cuda ? 4 : 2; }

}  // namespace gpufs::testing::litmus

// Seeds of tests with random operations. GPUFS_TEST_SEED is the first seed, GPUFS_TEST_SEED_COUNT
// their number. By default 1 to 48, or one if the first seed is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace gpufs::testing {

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

inline std::vector<std::uint64_t> seeds() {
  const std::uint64_t usual = std::getenv("GPUFS_TEST_SEED") == nullptr ? 48 : 1;
  std::vector<std::uint64_t> all(from_environment("GPUFS_TEST_SEED_COUNT", usual));
  std::iota(all.begin(), all.end(), from_environment("GPUFS_TEST_SEED", 1));
  return all;
}

inline std::vector<std::uint64_t> first_seeds(std::size_t most) {
  std::vector<std::uint64_t> all = seeds();
  if (all.size() > most) all.resize(most);
  return all;
}

// Sanitizers make everything many times slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

}  // namespace gpufs::testing

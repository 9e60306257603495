// Seeds of tests with random operations. GPUFS_TEST_SEED is the first seed, GPUFS_TEST_SEED_COUNT
// their number; one if only the first is given.
//
// Without a first seed they rotate: each run takes a share of some seeds, and GPUFS_TEST_ROTATION
// says which. `make test` takes another one each day. So many days try many seeds, and a run is
// short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace gpufs::testing {

// Sanitizers make everything many times slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Which share of something long this run takes.
inline std::uint64_t rotation() { return from_environment("GPUFS_TEST_ROTATION", 0); }

struct seed_range {
  std::uint64_t first, count;
};
// The seeds of a test that usually takes `usual` of them.
inline seed_range seeds_of(std::uint64_t usual) {
  const bool is_given = std::getenv("GPUFS_TEST_SEED") != nullptr;
  const std::uint64_t first = 1 + rotation() * usual;
  return {from_environment("GPUFS_TEST_SEED", first),
          from_environment("GPUFS_TEST_SEED_COUNT", is_given ? 1 : usual)};
}

inline std::vector<std::uint64_t> seeds() {
  const seed_range range = seeds_of(is_sanitized ? 6 : 12);
  std::vector<std::uint64_t> all(range.count);
  std::iota(all.begin(), all.end(), range.first);
  return all;
}

inline std::vector<std::uint64_t> first_seeds(std::size_t most) {
  std::vector<std::uint64_t> all = seeds();
  if (all.size() > most) all.resize(most);
  return all;
}

}  // namespace gpufs::testing

// Inputs as a fuzzer makes them (make fuzz), as many as there is time for in a test.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "fuzz/slot_fuzzer.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

TEST(slot_fuzzer, survives_random_inputs) {
  slot_fuzzer fuzzer;
  const std::uint64_t first = from_environment("GPUFS_TEST_SEED", 1);
  const int inputs = is_sanitized ? 500 : 3000;
  std::mt19937_64 random(first);
  std::vector<std::uint8_t> input;
  for (int i = 0; i < inputs; ++i) {
    input.resize(random() % 400);
    for (std::uint8_t& b : input) b = static_cast<std::uint8_t>(random());
    fuzzer.run(input);
  }
  EXPECT_GT(fuzzer.answered(), static_cast<std::uint64_t>(inputs) * 5);
}

TEST(slot_fuzzer, takes_an_input_of_any_length) {
  slot_fuzzer fuzzer;
  for (std::size_t bytes = 0; bytes < 300; ++bytes)
    fuzzer.run(std::vector<std::uint8_t>(bytes, bytes % 3 == 0 ? 0xff : 0x11));
}

}  // namespace
}  // namespace gpufs::testing

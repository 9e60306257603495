#include "fuzz/input.hpp"

#include <cstdio>
#include <cstdlib>

namespace gpufs::testing {
namespace {
std::span<const std::uint8_t> current;
}  // namespace

current_input::current_input(std::span<const std::uint8_t> input) { current = input; }
current_input::~current_input() { current = {}; }

void require(bool is_so, const char* what) {
  if (is_so) return;
  std::fprintf(stderr, "found: %s\n", what);
  if (!current.empty()) std::fprintf(stderr, "input, in hexadecimal digits: ");
  for (const std::uint8_t byte : current) std::fprintf(stderr, "%02x", static_cast<unsigned>(byte));
  std::fprintf(stderr, "\n");
  std::abort();
}

}  // namespace gpufs::testing

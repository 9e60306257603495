// gpufs::grep::grep_buffer against what GNU grep really reads.
#include "grep/grep_buffer.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace gpufs::testing {
namespace {

struct recording {
  std::uint64_t line_bytes;  // all lines are alike; the last one has no newline
  std::uint64_t file_bytes;
  std::vector<std::pair<int, std::uint64_t>> reads;  // times, bytes
};

// `strace -e trace=read grep -o -w -F -e foo FILE | cat`, GNU grep 3.8 of Debian 12, on x86-64.
const recording recordings[] = {
    {8, 300'000, {{3, 98304}, {1, 5088}}},
    {81, 400'000, {{4, 98304}, {1, 6784}}},
    {1001, 900'000, {{9, 98304}, {1, 15264}}},
    {5003,
     1'200'000,
     {{1, 98304}, {3, 94208}, {1, 98304}, {4, 94208}, {1, 98304}, {2, 94208}, {1, 57216}}},
    {20'011,
     1'500'000,
     {{1, 98304},
      {1, 77824},
      {1, 81920},
      {1, 77824},
      {1, 81920},
      {1, 77824},
      {2, 81920},
      {1, 77824},
      {1, 81920},
      {1, 77824},
      {1, 81920},
      {1, 77824},
      {1, 81920},
      {1, 77824},
      {1, 81920},
      {1, 77824},
      {1, 81920},
      {1, 41824}}},
    {70'001, 1'500'000, {{1, 98304}, {8, 69632}, {1, 73728}, {10, 69632}, {1, 73728}, {1, 864}}},
    {150'001,
     2'000'000,
     {{1, 98304},
      {1, 49152},
      {1, 77824},
      {2, 151552},
      {1, 147456},
      {2, 151552},
      {1, 147456},
      {1, 151552},
      {1, 147456},
      {2, 151552},
      {1, 147456},
      {1, 124032}}},
    {400'009,
     2'500'000,
     {{1, 98304},
      {1, 49152},
      {1, 77824},
      {1, 114688},
      {1, 172032},
      {2, 401408},
      {1, 397312},
      {1, 401408},
      {1, 386464}}},
    {3'000'000,
     2'000'000,
     {{1, 98304},
      {1, 49152},
      {1, 77824},
      {1, 114688},
      {1, 172032},
      {1, 258048},
      {1, 389120},
      {1, 585728},
      {1, 253952},
      {1, 1152}}},
};

TEST(GrepBuffer, ReadsAsGnuGrepDoes) {
  for (const recording& r : recordings) {
    grep::grep_buffer buffer(r.file_bytes);
    std::uint64_t end = 0;
    for (const auto& [times, bytes] : r.reads) {
      for (int k = 0; k < times; ++k) {
        const std::uint64_t kept = end % r.line_bytes;
        EXPECT_EQ(buffer.read(kept), bytes) << "lines of " << r.line_bytes << " bytes, at " << end;
        end += bytes;
      }
    }
    EXPECT_EQ(end, r.file_bytes);
    EXPECT_EQ(buffer.read(end % r.line_bytes), 0u);
  }
}

TEST(GrepBuffer, ReadsNothingOfAnEmptyFile) {
  grep::grep_buffer buffer(0);
  EXPECT_EQ(buffer.read(0), 0u);
}

}  // namespace
}  // namespace gpufs::testing

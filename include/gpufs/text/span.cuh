// A part of a text. Does not own it.
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs {

struct text_span {
  const char* data;
  std::uint64_t bytes;
};

// The span of a zero-terminated text without its zero. Reads at most `most` bytes.
GPUFS_HD inline text_span span_of(const char* text, std::uint64_t most = ~std::uint64_t{0}) {
  std::uint64_t bytes = 0;
  while (bytes < most && text[bytes] != 0) ++bytes;
  return {text, bytes};
}

// Like isspace(3) in the C locale.
GPUFS_HD constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

GPUFS_HD constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace gpufs

// Which pages of a mapped file are in the host's page cache, and the time of such checks.
#pragma once

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace gpufs {

// The time in seconds, 31 bits. Coarse, and five times cheaper than the exact time.
inline std::uint32_t coarse_seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return static_cast<std::uint32_t>(t.tv_sec) & 0x7fff'ffffu;
}

// Whether all pages of a range of a mapping are in the page cache. The range is at most `Most`
// bytes long, and begins at a page.
template <std::uint64_t Most>
bool are_in_page_cache(char* data, std::uint64_t bytes) {
  static const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, Most / 4096> resident;  // a page has at least 4,096 bytes
  if (bytes > Most || mincore(data, bytes, resident.data()) != 0) return false;
  const auto end =
      resident.begin() + static_cast<std::ptrdiff_t>((bytes + page_bytes - 1) / page_bytes);
  return std::all_of(resident.begin(), end, [](unsigned char r) { return (r & 1) != 0; });
}

}  // namespace gpufs

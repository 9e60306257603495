// All fixed limits. Relations between them are asserted here, with the reason.
#pragma once

#include "gpufs/base/standard.cuh"

namespace gpufs::limits {

inline constexpr std::uint64_t page_bytes_min = 512;
inline constexpr std::uint64_t page_bytes_max = std::uint64_t{2} << 20;
inline constexpr std::uint64_t file_bytes_max = std::uint64_t{1} << 48;
// With the terminating zero, like Linux's PATH_MAX.
inline constexpr std::uint32_t path_bytes_max = 4096;

// Open-file records of a mount. A record's number is part of a descriptor, whose 31 bits hold the
// number and the generation.
inline constexpr std::uint32_t open_files_bits = 17;
inline constexpr std::uint32_t open_files_max = 1u << open_files_bits;
inline constexpr std::uint32_t generation_bits = 31 - open_files_bits;
static_assert(open_files_max >= 65536, "promised: 65,536 files open at once");
static_assert(open_files_bits + generation_bits == 31, "a descriptor is a non-negative int");

inline constexpr std::uint32_t frames_max =
    0xffff'fff0u;  // an index entry holds the frame's number + 1 in 32 bits

inline constexpr std::uint32_t channel_slots_max = 4096;
inline constexpr std::uint32_t bulk_bytes_max = 16u << 20;
inline constexpr std::uint32_t staging_bytes_min = 8192;
static_assert(staging_bytes_min >= path_bytes_max,
              "an open's path travels in the slot's staging memory");
inline constexpr std::uint32_t staging_bytes_max = 1u << 20;
inline constexpr std::uint32_t write_bytes_max = 4u << 20;

inline constexpr std::uint32_t sinks_max = 64;
inline constexpr unsigned workers_max = 256;

}  // namespace gpufs::limits

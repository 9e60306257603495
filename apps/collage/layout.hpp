// A collage dataset: a folder with two files, little-endian. All their parts begin at multiples of
// 4 KiB.
//
// records   tile 0, tile 1, ...: a `record` each
// tables    `header`; the hash functions, that of bit b of table t at index t * bits_max + b;
//           then for each table 2^bits + 1 offsets (uint32) of its buckets, and the numbers
//           (uint32) of all tiles, bucket by bucket, ascending in each: bucket k's are those from
//           offset k to offset k + 1
#pragma once

#include "gpufs/base/platform.cuh"

namespace gpufs::collage {

inline constexpr std::uint32_t tile_side = 32;  // pixels
inline constexpr std::uint32_t channels = 3;    // red, green, blue
inline constexpr std::uint32_t line_bytes = tile_side * channels;
inline constexpr std::uint32_t picture_bytes = tile_side * line_bytes;
inline constexpr std::uint32_t bins = 128;  // in a channel, two values each
inline constexpr std::uint32_t histogram_length = channels * bins;
inline constexpr std::uint32_t part_bytes = 4096;  // every part of a file is a multiple of this

struct record {
  std::uint8_t picture[picture_bytes];  // row by row
  std::uint16_t histogram
      // channel by channel, cumulative: the number of pixels in this bin or an earlier bin
      [histogram_length];
  std::uint8_t zeros[256];
};
inline constexpr std::uint32_t histogram_at = picture_bytes;
inline constexpr std::uint32_t histogram_bytes = histogram_length * sizeof(std::uint16_t);
static_assert(sizeof(record) == part_bytes, "a record is read as a page of 4 KiB");
inline constexpr std::uint32_t page_bytes_min = 1024;
static_assert(histogram_at % page_bytes_min == 0 && histogram_bytes <= page_bytes_min,
              "a page holds a whole histogram");

inline constexpr std::uint32_t table_count = 32;
inline constexpr std::uint32_t bits_min = 4, bits_max = 24;
// Tiles have 32-bit numbers. The largest number means none.
inline constexpr std::uint64_t tiles_max = 0xffff'ffff;

inline constexpr std::uint32_t groups = 16;  // groups of bins in a channel
inline constexpr std::uint32_t feature_length = channels * groups;

// One bit of a key: whether the sum of the feature's elements at `terms`, negated where `negative`
// is set, is above the threshold.
struct hash_function {
  static constexpr std::uint8_t negative = 0x80;
  std::uint8_t terms[8];
  std::int32_t threshold;
};
static_assert(sizeof(hash_function) == 12, "as it lies in files");
static_assert(feature_length <= hash_function::negative,
              "an element's number leaves room for the sign");

struct header {
  static constexpr char right_magic[8] = {'g', 'p', 'u', 'f', 's', 'c', 'o', 'l'};
  static constexpr std::uint32_t right_version = 1;
  char magic[8];
  std::uint32_t version;
  std::uint32_t tables;  // table_count
  std::uint64_t tiles;
  std::uint32_t bits;  // in a key
  std::uint32_t zero;
};
static_assert(sizeof(header) == 32, "as it lies in files");

// The places of the parts of `tables`.
struct table_places {
  std::uint64_t tiles;
  std::uint32_t bits;

  static constexpr std::uint64_t functions = part_bytes;
  static constexpr std::uint64_t functions_count = std::uint64_t{table_count} * bits_max;
  GPUFS_HD static constexpr std::uint64_t whole_parts(std::uint64_t bytes) {
    return (bytes + part_bytes - 1) / part_bytes * part_bytes;
  }
  GPUFS_HD constexpr std::uint64_t offsets_bytes() const {
    return whole_parts(((std::uint64_t{1} << bits) + 1) * sizeof(std::uint32_t));
  }
  GPUFS_HD constexpr std::uint64_t offsets(std::uint32_t table) const {
    return functions + whole_parts(functions_count * sizeof(hash_function)) +
           table * (offsets_bytes() + whole_parts(tiles * sizeof(std::uint32_t)));
  }
  GPUFS_HD constexpr std::uint64_t numbers(std::uint32_t table) const {
    return offsets(table) + offsets_bytes();
  }
  constexpr std::uint64_t file_bytes() const { return offsets(table_count); }
};

// How many tiles of a bucket are candidates, the first ones. A bucket with half of the dataset
// would take all the time.
inline constexpr std::uint32_t taken_of_bucket = 16;
inline constexpr std::uint32_t candidates_max = table_count * taken_of_bucket;

}  // namespace gpufs::collage

// How the work on a picture is divided, and where its arrays lie in device memory. Only arithmetic.
#pragma once

#include <algorithm>
#include <utility>

#include "collage/collage.hpp"
#include "common/arithmetic.cuh"

namespace gpufs::collage {

struct plan {
  table_places places;
  std::uint32_t columns, rows;  // in blocks
  // Of a launch: threads in a block, and blocks that run at a time.
  std::uint32_t threads, most;
  std::uint32_t maps_of_warp;  // the records for which the cache has room
  std::uint32_t band_rows;     // rows whose pixels go to the device together, for one launch
  // Whether similar blocks follow each other. If a cache cannot hold all wanted pages, it then
  // still has most of what the next block wants.
  bool ordered;
  // Offsets of the arrays from the start of the memory, and its total size.
  std::uint64_t functions, pixels, collage, tiles, distances, candidates, turns, order, bytes;

  plan(mount& m, const dataset& from, const block_picture& picture)
      : places(from.places), columns(picture.columns), rows(picture.rows) {
    share_out(m.multiprocessors(), m.options().cache_bytes, m.options().page_bytes);
    lay_out(from.functions.size() * sizeof(hash_function));
  }
  GPUFS_HD std::uint64_t blocks() const { return std::uint64_t{columns} * rows; }
  // The blocks of the band that begins with this row.
  std::uint64_t band_blocks(std::uint32_t row) const {
    return std::uint64_t{columns} * std::min(band_rows, rows - row);
  }
  std::uint64_t turns_of(std::uint32_t row) const {
    return turns + row / band_rows * sizeof(std::uint64_t);
  }
  std::uint64_t row_bytes() const { return std::uint64_t{columns} * picture_bytes; }

 private:
  static constexpr std::uint32_t threads_of_multiprocessor = 1024;  // with 64 registers each
  static constexpr std::uint32_t threads_min = 256, warp_threads = 32;
  // Its copy takes a millisecond, for which a kernel waits.
  static constexpr std::uint64_t band_bytes = std::uint64_t{32} << 20;

  void share_out(std::uint32_t multiprocessors, std::uint64_t cache_bytes,
                 std::uint64_t page_bytes) {
    // The mappings of all warps together fit into half of the cache.
    const std::uint64_t room = cache_bytes / page_bytes / 2;
    const auto blocks_at_a_time = [&] {
      return multiprocessors * (threads_of_multiprocessor / threads);
    };
    const auto warps = [&] {
      return std::min<std::uint64_t>(blocks(), blocks_at_a_time()) * (threads / warp_threads);
    };
    // The fewer blocks there are, the more warps work on each.
    threads = threads_of_multiprocessor;
    while (threads > threads_min && (blocks() > blocks_at_a_time() || warps() > room)) threads /= 2;
    most = blocks_at_a_time();
    maps_of_warp =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(room / warps(), 1, warp_threads));
    ordered = cache_bytes < wanted_bytes(page_bytes);
    band_rows = ordered ? rows : static_cast<std::uint32_t>(ceiling(band_bytes, row_bytes()));
  }
  // The most bytes of the dataset that may be wanted.
  std::uint64_t wanted_bytes(std::uint64_t page_bytes) const {
    const std::uint64_t of_records =
        places.tiles * std::min<std::uint64_t>(page_bytes, sizeof(record));
    const std::uint64_t of_tables = places.offsets(table_count);
    return std::min(of_records, blocks() * candidates_max * page_bytes) +
           std::min(of_tables, blocks() * table_count * 2 * page_bytes);
  }
  void lay_out(std::uint64_t functions_bytes) {
    bytes = 0;
    const auto place = [this](std::uint64_t count) {
      constexpr std::uint64_t line = 256;
      return std::exchange(bytes, ceiling(bytes + count, line) * line);
    };
    functions = place(functions_bytes);
    pixels = place(rows * row_bytes());
    collage = place(rows * row_bytes());
    tiles = place(blocks() * sizeof(std::uint32_t));
    distances = place(blocks() * sizeof(std::uint32_t));
    candidates = place(sizeof(std::uint64_t));
    turns = place(ceiling(rows, band_rows) * sizeof(std::uint64_t));
    order = place(ordered ? blocks() * sizeof(std::uint32_t) : 0);
  }
};

}  // namespace gpufs::collage

// How rows that blocks map and multiply share a cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpufs/gpufs.hpp"
#include "tile/product.cuh"

namespace gpufs::tile {

// How many rows a block maps at a time, and how many blocks there are: such that all of it has room in half of the cache.
struct cut {
  std::uint32_t rows = side;
  std::uint32_t blocks;
  std::uint64_t page_bytes;
  std::uint64_t pages;  // half of the cache
  std::uint32_t
      part_columns;  // that are mapped of a row at a time: all, or as many as a page has; in two pages at most
  cut(const mount& m, std::uint32_t most_blocks, std::uint64_t stride, std::uint64_t columns,
      std::uint64_t number_bytes)
      : cut(m.options(), m.multiprocessors(), most_blocks, stride, columns, number_bytes) {}
  cut(const mount_options& options, unsigned multiprocessors, std::uint32_t most_blocks, std::uint64_t stride,
      std::uint64_t columns, std::uint64_t number_bytes)
      : blocks(most_blocks), page_bytes(options.page_bytes), pages(options.cache_bytes / page_bytes / 2),
        part_columns(static_cast<std::uint32_t>(std::min(columns, page_bytes / number_bytes))) {
    const auto mapped = [&] { return pages_mapped(stride, columns); };
    while (mapped() * blocks > pages && blocks > multiprocessors) blocks /= 2;
    while (mapped() * blocks > pages && rows > 1) rows /= 2;
    blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(pages / mapped(), 1, blocks));
  }
  // Of a block, at most.
  std::uint64_t pages_mapped(std::uint64_t stride, std::uint64_t columns) const {
    return part_columns != columns ? 2 * rows : pages_of(rows * stride);
  }
  // Of so many bytes that lie together, wherever they begin.
  std::uint64_t pages_of(std::uint64_t bytes) const { return bytes / page_bytes + 2; }
};

// Scratch memory of a block that multiplies, besides `bytes`.
inline std::size_t scratch_bytes(const mount& m, std::size_t bytes) {
  return bytes + (m.device() == device_kind::cpu ? product::twin_memory_bytes : 0);
}

}  // namespace gpufs::tile

// How rows that blocks map and multiply share a cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "job/mount_facts.hpp"
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
      : cut(job::mount_facts::of(m), most_blocks, stride, columns, number_bytes) {}
  cut(const job::mount_facts& m, std::uint32_t most_blocks, std::uint64_t stride, std::uint64_t columns,
      std::uint64_t number_bytes)
      : blocks(most_blocks), page_bytes(m.page_bytes), pages(m.cache_bytes / page_bytes / 2),
        part_columns(static_cast<std::uint32_t>(std::min(columns, page_bytes / number_bytes))) {
    const auto mapped = [&] { return part_columns != columns ? 2 * rows : pages_of(rows * stride); };
    while (mapped() * blocks > pages && blocks > m.multiprocessors) blocks /= 2;
    while (mapped() * blocks > pages && rows > 1) rows /= 2;
    blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(pages / mapped(), 1, blocks));
  }
  // Of so many bytes that lie together, wherever they begin.
  std::uint64_t pages_of(std::uint64_t bytes) const { return bytes / page_bytes + 2; }
};

// Scratch memory of a block that multiplies, besides `bytes`.
inline std::size_t scratch_bytes(const mount& m, std::size_t bytes) {
  return bytes + (m.device() == device_kind::cpu ? product::twin_memory_bytes : 0);
}

}  // namespace gpufs::tile

// How the rows that blocks map and multiply share a cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "job/mount_facts.hpp"
#include "tile/rows.cuh"

namespace gpufs::tile {

// The rows of a matrix in its file, or in several files.
struct rows_in_file {
  static constexpr std::uint64_t unknown = ~std::uint64_t{0};
  std::uint64_t stride, columns, number_bytes;
  std::uint64_t count = unknown;   // if the rows are not of one file
  std::uint64_t offset = unknown;  // Likewise. A part of a row may then lie in two pages.
};

// How many rows a block maps at a time, and how many blocks there are. All mapped rows must fit
// into half of the cache. Each block's rows count as if no other block had mapped them, unless all
// rows of the file need less. If nothing fits, one block with one row remains.
struct cut {
  std::uint32_t rows = side;
  std::uint32_t blocks;
  std::uint64_t page_bytes;
  std::uint64_t pages;  // half of the cache
  // columns of a row that are mapped at a time: all, or as many as a page has
  std::uint32_t part_columns;
  cut(const job::mount_facts& m, std::uint32_t most_blocks, const rows_in_file& r)
      : blocks(most_blocks), page_bytes(m.page_bytes), pages(m.cache_bytes / page_bytes / 2),
        part_columns(static_cast<std::uint32_t>(std::min(r.columns, page_bytes / r.number_bytes))) {
    if (r.count <= pages * page_bytes / r.stride && pages_of(r.count * r.stride) <= pages) return;
    const std::uint64_t pages_of_part =
        r.offset != rows_in_file::unknown &&
                parts_are_pages(r.offset, r.stride, page_bytes, r.number_bytes)
            ? 1
            : 2;
    const auto mapped = [&] {
      return part_columns != r.columns ? pages_of_part * rows : pages_of(rows * r.stride);
    };
    // With half as many rows, half of each tile is zeros. Only more blocks than multiprocessors
    // make up for that.
    while (rows > 1 && 2 * (pages / mapped()) <= m.multiprocessors) rows /= 2;
    blocks = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(pages / mapped(), 1, blocks));
  }
  // Returns the most pages that this many contiguous bytes can touch.
  std::uint64_t pages_of(std::uint64_t bytes) const { return bytes / page_bytes + 2; }
};

// Scratch memory of a block that multiplies with a `Memory`.
template <class Memory>
std::size_t scratch_bytes(bool is_cpu) {
  return sizeof(Memory) + (is_cpu ? cpu_memory_bytes : 0);
}

}  // namespace gpufs::tile

// How a search divides its databases for a cache and a device, and what it prefetches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/arithmetic.cuh"
#include "search/search.hpp"
#include "tile/cut.hpp"

namespace gpufs::search {

// The databases are one sequence of chunks of `rows` vectors each, or fewer at the end of a
// database. A block compares one chunk with one tile of the queries at a time. All tiles of a chunk
// come before the next chunk.
struct plan : tile::cut {
  static constexpr std::uint32_t blocks_per_multiprocessor = 2;
  std::uint64_t queries, dimensions, tiles;
  std::uint32_t length;  // of a query's list
  bool is_first;         // whether first matches are wanted
  double squared_threshold;
  std::uint64_t chunks = 0;
  std::uint64_t pack_blocks;
  // Whether the copy engine prefetches chunks, as far as the cache has room for them: `unit` chunks
  // at a time, `ahead` units before they are needed. Chunks up to `early` prefetch before the first
  // chunk is searched. `ahead` 0: each chunk separately.
  bool advises;
  std::uint32_t unit = 1, ahead = 0, early = 0;

  // check() must have accepted the question, and it must have queries.
  plan(const job::mount_facts& m, const question& q)
      : cut(m, most_blocks(m.multiprocessors, q), {stride_of(q), q.dimensions, sizeof(float)}),
        queries(q.queries.count), dimensions(q.dimensions), tiles(ceiling(queries, tile::side)),
        length(std::max<std::uint32_t>(q.top, 1)), is_first(q.top == 0),
        squared_threshold(q.threshold * q.threshold),
        // One more block prefetches the first chunk meanwhile.
        pack_blocks(ceiling(queries * dimensions * sizeof(float), pack_bytes) + 1) {
    for (const vectors_file& d : q.databases) chunks += ceiling(d.count, rows);
    const std::uint64_t chunk_bytes = rows * stride_of(q), chunk_pages = pages_of(chunk_bytes);
    advises = m.bulk_bytes != 0 && chunk_pages <= pages / blocks;
    // As much as the copy engine loads at once, and so far ahead that several such loads are in
    // flight.
    const std::uint64_t at_once = std::max<std::uint64_t>(m.bulk_bytes / chunk_bytes, 1);
    const std::uint64_t under_way = (blocks / tiles + 2 * at_once) * chunk_pages;
    const std::uint64_t room = pages > under_way ? (pages - under_way) / chunk_pages : 0;
    ahead = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(room, tiles == 1 ? blocks : chunks_ahead) / at_once);
    if (ahead != 0) unit = static_cast<std::uint32_t>(at_once);
    early = std::min(ahead, early_units);
  }

  struct chunk_range {
    std::uint64_t begin, end;  // chunks
  };
  // The prefetch of the block with a chunk's first tile. The first chunk is prefetched while the
  // queries are packed. The blocks of the next chunks prefetch one of the first units each; the
  // first of them takes the rest of two units.
  GPUFS_HD chunk_range brought_at_first(std::uint64_t chunk) const {
    if (chunk == 0 || chunk > ahead) return {0, 0};
    return {chunk == 1 ? 1 : chunk * unit, (chunk + 1) * unit};
  }
  // In addition, one block of each unit prefetches the next unit that no block has prefetched.
  GPUFS_HD chunk_range brought_ahead(std::uint64_t chunk) const {
    if (chunk == 0 || chunk % unit != 0) return {0, 0};
    return {chunk + std::uint64_t{ahead} * unit, chunk + std::uint64_t{ahead + 1} * unit};
  }

 private:
  // Queries that a block reads and packs: fewer are not worth opening the file.
  static constexpr std::uint64_t pack_bytes = std::uint64_t{128} << 10;
  static constexpr std::uint64_t chunks_ahead = 64;
  // About as much as arrives while the first chunk is searched, because no more may be needed.
  static constexpr std::uint32_t early_units = 2;

  static std::uint64_t stride_of(const question& q) {
    std::uint64_t stride = q.dimensions * sizeof(float);
    for (const vectors_file& d : q.databases) stride = std::max(stride, d.stride);
    return stride;
  }
  // If there is one tile, each block has its own chunk in flight. Half as many blocks keep the bus
  // as busy, and need half as much of the cache.
  static std::uint32_t most_blocks(std::uint32_t multiprocessors, const question& q) {
    return multiprocessors * (q.queries.count <= tile::side ? 1 : blocks_per_multiprocessor);
  }
};

// Vectors of a file, as kernels see them. For a database also its place among all databases.
struct vectors_place {
  std::uint64_t offset, stride, count;
  std::uint64_t first_index, first_chunk;
};

// The queries' file, then the databases.
inline std::vector<std::string> paths_of(const question& q) {
  std::vector<std::string> paths{q.queries.path};
  for (const vectors_file& d : q.databases) paths.push_back(d.path);
  return paths;
}

// The queries, the databases, and one more entry that ends the last database.
inline std::vector<vectors_place> places_of(const question& q, const plan& how) {
  std::vector<vectors_place> places{{q.queries.offset, q.queries.stride, q.queries.count, 0, 0}};
  std::uint64_t index = 0, chunk = 0;
  for (const vectors_file& d : q.databases) {
    places.push_back({d.offset, d.stride, d.count, index, chunk});
    index += d.count;
    chunk += ceiling(d.count, how.rows);
  }
  places.push_back({0, 0, 0, index, chunk});
  return places;
}

}  // namespace gpufs::search

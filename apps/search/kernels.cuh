// The kernels of search.hpp.
#pragma once

#include "job/files.cuh"
#include "search/nearest.cuh"

namespace gpufs::search {

using job::failure;

// Packs the queries for the matrix units, a block some slices of a tile; and sums up their squares, a warp those of a query.
template <int Parts>
struct pack_queries : tuned_shape {
  static constexpr std::uint64_t slices_of_block = 8;
  static constexpr std::size_t scratch_bytes = sizeof(tile::row_table);
  const float* numbers;  // one query behind another
  std::uint64_t queries, dimensions;
  char* slices;
  float* squares;

  GPUFS_HD void operator()(const mount_ref&) const {
    const block_group g = this_block();
    auto& rows = *reinterpret_cast<tile::row_table*>(block_group::scratch());
    const std::uint64_t all = tile::panel::slices_in(dimensions), parts = parts_of_tile(dimensions);
    const std::uint64_t tiles = ceiling(queries, tile::side);
    job::by_turns(tiles * parts, 1, [&](std::uint64_t i, std::uint64_t) {
      const std::uint64_t first = i / parts * tile::side, slice = i % parts * slices_of_block;
      const auto count = static_cast<std::uint32_t>(queries - first < tile::side ? queries - first : tile::side);
      pack_tile<Parts>(g, rows, numbers + first * dimensions, dimensions, count, slice,
                       slice + slices_of_block < all ? slice + slices_of_block : all,
                       slices + i / parts * all * (tile::slice_bytes * Parts));
    });
    const warp_group warp = g.warp();
    job::by_turns(queries, g.warp_count(), [&](std::uint64_t first, std::uint64_t end) {
      const std::uint64_t q = first + g.warp_rank();
      if (q >= end) return;
      const float sum = sum_of_squares(warp, numbers + q * dimensions, dimensions);
      if (warp.is_leader()) squares[q] = sum;
    });
  }
  GPUFS_HD static constexpr std::uint64_t parts_of_tile(std::uint64_t dimensions) {
    return ceiling(tile::panel::slices_in(dimensions), slices_of_block);
  }
};

// A database, and where it is among all: its vectors, and its chunks of vectors that a block looks through at a time.
struct database {
  const char* path;
  std::uint64_t offset, stride, count;
  std::uint64_t first_index, first_chunk;
};

// Compares chunks of the databases with tiles of the queries, in order: all tiles with a chunk before the next chunk. A block maps a
// chunk's vectors, multiplies them with the queries where they are, and looks closer at what may be near enough.
template <int Parts>
struct scan {
  static constexpr int block_threads_max = tile::threads;
  static constexpr int blocks_per_multiprocessor = 2;
  const database* databases;  // one more than there are, which ends the last
  std::uint32_t chunk_vectors;
  std::uint64_t dimensions;
  std::uint32_t part_dimensions;  // that are mapped at a time: all, or as many as a page has
  // What is brought into the cache at a time, and how far ahead of what is compared, in chunks. 0: each chunk by itself.
  std::uint32_t brought, ahead;
  bool advises;  // whether a chunk is one that the cache has room for
  const float* queries;
  const float* query_squares;
  tile::panel packed;
  answers to;
  failure failed;
  // Of pairs of a chunk and a tile.
  std::uint64_t first_pair, end_pair;
  atomic_word<std::uint64_t>* next_pair;

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    auto& memory = *reinterpret_cast<scan_memory<Parts>*>(block_group::scratch());
    const std::uint64_t tiles = ceiling(to.queries, tile::side);
    std::uint32_t number = 0, open_number = 0;
    std::int32_t fd = -1;
    for (;;) {
      // One look for all members: others add to what has matched meanwhile, and what follows is for all of them or none.
      struct {
        std::uint64_t pair, matched;
      } next{};
      if (g.is_leader()) next = {first_pair + next_pair->fetch_add_relaxed(1), to.matched->load_relaxed()};
      next = g.broadcast(next);
      const std::uint64_t pair = next.pair;
      if (pair >= end_pair) break;
      const std::uint64_t chunk = pair / tiles, first_query = pair % tiles * tile::side;
      while (databases[number + 1].first_chunk <= chunk) ++number;
      const database& d = databases[number];
      const std::uint64_t row = (chunk - d.first_chunk) * chunk_vectors, index = d.first_index + row;
      const std::uint64_t end_query = to.queries - first_query < tile::side ? to.queries : first_query + tile::side;
      if (next.matched == to.queries && to.settled(g, 0, to.queries, index)) break;
      const bool is_settled = to.settled(g, first_query, end_query, index);
      if (is_settled && first_query != 0) continue;
      if (fd >= 0 && number != open_number) {
        (void)gclose(g, fs, fd);  // of a file that is only read
        fd = -1;
      }
      if (fd < 0) fd = job::open_to_read(g, fs, d.path, number + 1, failed);
      open_number = number;
      if (fd < 0 || g.all(failed.told())) break;
      // By the first tile's block also where that has nothing to look for: others do.
      bring(g, fs, fd, d, row / chunk_vectors, first_query == 0);
      if (is_settled) continue;
      const std::uint64_t left = d.count - row;
      const auto count = static_cast<std::uint32_t>(left < chunk_vectors ? left : chunk_vectors);
      if (!compare(g, fs, fd, memory, d, row, count, first_query, static_cast<std::uint32_t>(end_query - first_query)))
        break;
    }
    if (fd >= 0) (void)gclose(g, fs, fd);
  }

 private:
  GPUFS_HD bool compare(const block_group& g, const mount_ref& fs, std::int32_t fd, scan_memory<Parts>& memory,
                        const database& d, std::uint64_t row, std::uint32_t count, std::uint64_t first_query,
                        std::uint32_t query_count) const {
    const std::uint64_t begin = d.offset + row * d.stride;
    tile::product products(block_group::scratch() + sizeof(scan_memory<Parts>));
    memory.squares.clear(g);
    const tile::rows_of_file rows{fd, begin, d.stride, count, dimensions, part_dimensions};
    const std::int32_t wrong = tile::add_mapped_product<Parts, float>(
        g, fs, products, memory.stages, memory.rows, rows, packed, first_query / tile::side, memory.squares.adding());
    if (wrong != 0) {
      if (g.is_leader()) tell(d, wrong);
      return false;
    }
    bound_distances(g, memory, products, query_squares + first_query, query_count,
                    distance_error::of<Parts>(dimensions));
    look_through(g, memory, to, first_query, query_count, d.first_index + row, count,
                 [&](const warp_group& warp, std::uint64_t query, std::uint32_t r) {
                   return exact(warp, fs, fd, d, begin + r * d.stride, query);
                 });
    g.sync();  // before the next products
    return true;
  }

  // Has the copy engine bring a chunk, and such as come later.
  GPUFS_HD void bring(const block_group& g, const mount_ref& fs, std::int32_t fd, const database& d,
                      std::uint64_t chunk, bool first_tile) const {
    if (!advises) return;
    if (chunk < ahead + brought || brought == 0) advise(g, fs, fd, d, chunk, 1);
    if (brought != 0 && first_tile && chunk % brought == 0) advise(g, fs, fd, d, chunk + ahead, brought);
  }
  GPUFS_HD void advise(const block_group& g, const mount_ref& fs, std::int32_t fd, const database& d,
                       std::uint64_t chunk, std::uint64_t chunks) const {
    const std::uint64_t row = chunk * chunk_vectors, most = chunks * chunk_vectors;
    if (row >= d.count) return;
    (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(d.offset + row * d.stride),
                   (d.count - row < most ? d.count - row : most) * d.stride, POSIX_FADV_WILLNEED);
  }

  // The queries' file is the first of the job's.
  GPUFS_HD void tell(const database& d, std::int64_t result) const {
    failed.tell(static_cast<std::uint32_t>(&d - databases) + 1, result);
  }

  // The squared distance of a vector from a query; less than 0, which is told, if it cannot be read any more.
  GPUFS_HD double exact(const warp_group& warp, const mount_ref& fs, std::int32_t fd, const database& d,
                        std::uint64_t at, std::uint64_t query) const {
    double sum = 0;
    for (std::uint64_t done = 0; done < dimensions;) {
      const mapping m = gmmap(warp, fs, fd, static_cast<std::int64_t>(at + done * sizeof(float)),
                              (dimensions - done) * sizeof(float));
      if (m.bytes < static_cast<std::int64_t>(sizeof(float))) {
        if (m.bytes > 0) (void)gmunmap(warp, fs, m.data);
        if (warp.is_leader()) tell(d, m.bytes);
        return -1;
      }
      const std::uint64_t here = static_cast<std::uint64_t>(m.bytes) / sizeof(float);
      const auto* numbers = reinterpret_cast<const float*>(m.data);
      add_squared_distance(warp, sum, numbers, queries + query * dimensions + done, done, here);
      (void)gmunmap(warp, fs, m.data, sum);
      done += here;
    }
    return sum_of(warp, sum);
  }
};

}  // namespace gpufs::search

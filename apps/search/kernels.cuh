// The kernels of search.hpp.
#pragma once

#include "job/files.cuh"
#include "search/nearest.cuh"

namespace gpufs::search {

using job::failure;

// Packs the queries for the matrix units, and sums up their squares: a block each tile.
struct pack_queries : job::tuned_shape {
  const float* numbers;  // one query behind another
  std::uint64_t queries, dimensions;
  char* slices;
  float* squares;

  GPUFS_HD void operator()(const mount_ref&) const {
    const block_group g = this_block();
    auto& memory = *reinterpret_cast<scan_memory*>(block_group::scratch());
    const std::uint64_t slices_of_row = tile::panel::slices_in(dimensions);
    job::by_turns(queries, tile::side, [&](std::uint64_t first, std::uint64_t end) {
      const auto count = static_cast<std::uint32_t>(end - first);
      tile::set_rows(g, memory.rows, reinterpret_cast<const char*>(numbers + first * dimensions),
                     dimensions * sizeof(float), count);
      memory.squares.clear(g);
      g.sync();
      char* to = slices + first / tile::side * slices_of_row * tile::slice_bytes;
      for (std::uint64_t s = 0; s < slices_of_row; ++s, to += tile::slice_bytes) {
        tile::slice_on_its_way<float, false> slice;
        slice.load(g, memory.rows, count, static_cast<std::uint32_t>(s * tile::depth),
                   static_cast<std::uint32_t>(dimensions));
        slice.store<1>(g, to, [&](std::uint32_t row, std::uint32_t part, const float (&some)[4]) {
          memory.squares.add(row, part, some);
        });
      }
      g.sync();
      for (std::uint32_t q = g.rank(); q < count; q += g.size()) squares[first + q] = memory.squares.sum(q);
      g.sync();  // before the next tile's rows
    });
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
struct scan {
  static constexpr int block_threads_max = tile::threads;
  static constexpr int blocks_per_multiprocessor = 2;
  const database* databases;  // one more than there are, which ends the last
  std::uint32_t chunk_vectors;
  std::uint64_t dimensions;
  std::uint32_t part_dimensions;  // that are mapped at a time: all, or as many as a page has
  bool advises;
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
    auto& memory = *reinterpret_cast<scan_memory*>(block_group::scratch());
    const std::uint64_t tiles = (to.queries + tile::side - 1) / tile::side;
    std::uint32_t number = 0, open_number = 0;
    std::int32_t fd = -1;
    for (;;) {
      std::uint64_t pair = 0;
      if (g.is_leader()) pair = first_pair + next_pair->fetch_add_relaxed(1);
      pair = g.broadcast(pair);
      if (pair >= end_pair) break;
      const std::uint64_t chunk = pair / tiles, first_query = pair % tiles * tile::side;
      while (databases[number + 1].first_chunk <= chunk) ++number;
      const database& d = databases[number];
      const std::uint64_t row = (chunk - d.first_chunk) * chunk_vectors, index = d.first_index + row;
      const std::uint64_t end_query = to.queries - first_query < tile::side ? to.queries : first_query + tile::side;
      if (to.matched->load_relaxed() == to.queries && to.settled(g, 0, to.queries, index)) break;
      if (to.settled(g, first_query, end_query, index)) continue;
      if (fd >= 0 && number != open_number) {
        (void)gclose(g, fs, fd);  // of a file that is only read
        fd = -1;
      }
      if (fd < 0) fd = job::open_to_read(g, fs, d.path, number + 1, failed);
      open_number = number;
      if (fd < 0 || g.all(failed.told())) break;
      const std::uint64_t left = d.count - row;
      const auto count = static_cast<std::uint32_t>(left < chunk_vectors ? left : chunk_vectors);
      if (!compare(g, fs, fd, memory, d, row, count, first_query, static_cast<std::uint32_t>(end_query - first_query)))
        break;
    }
    if (fd >= 0) (void)gclose(g, fs, fd);
  }

 private:
  GPUFS_HD bool compare(const block_group& g, const mount_ref& fs, std::int32_t fd, scan_memory& memory,
                        const database& d, std::uint64_t row, std::uint32_t count, std::uint64_t first_query,
                        std::uint32_t query_count) const {
    const std::uint64_t begin = d.offset + row * d.stride;
    if (advises) (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(begin), count * d.stride, POSIX_FADV_WILLNEED);
    tile::product products(block_group::scratch() + sizeof(scan_memory));
    memory.squares.clear(g);
    for (std::uint64_t at = 0; at < dimensions; at += part_dimensions) {
      const auto columns =
          static_cast<std::uint32_t>(dimensions - at < part_dimensions ? dimensions - at : part_dimensions);
      const std::int32_t wrong = tile::map_rows(g, fs, fd, memory.rows, begin + at * sizeof(float), d.stride, count,
                                                columns * static_cast<std::uint32_t>(sizeof(float)));
      if (wrong == 0) {
        const tile::factors both{memory.rows, count, columns, packed, first_query / tile::side, at / tile::depth};
        const auto take = [&](std::uint32_t r, std::uint32_t part, const float (&some)[4]) {
          memory.squares.add(r, part, some);
        };
        if (tile::are_aligned<float>(begin, d.stride, columns))
          tile::add_product<1, float, true>(g, products, memory.stages, both, take);
        else tile::add_product<1, float, false>(g, products, memory.stages, both, take);
      }
      tile::unmap_rows(g, fs, memory.rows);
      if (wrong != 0) {
        if (g.is_leader()) tell(d, wrong);
        return false;
      }
    }
    bound_distances(g, memory, products, query_squares + first_query, query_count, relative_error(dimensions));
    look_through(g, memory, to, first_query, query_count, d.first_index + row, count,
                 [&](const warp_group& warp, std::uint64_t query, std::uint32_t r) {
                   return exact(warp, fs, fd, d, begin + r * d.stride, query);
                 });
    g.sync();  // before the next products
    return true;
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
      const double part =
          squared_distance(warp, reinterpret_cast<const float*>(m.data), queries + query * dimensions + done, here);
      (void)gmunmap(warp, fs, m.data, part);
      sum += part;
      done += here;
    }
    return sum_of(warp, sum);
  }
};

}  // namespace gpufs::search

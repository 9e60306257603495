// The kernels of search.hpp.
#pragma once

#include "job/job.hpp"
#include "search/workspace.hpp"

namespace gpufs::search {

// Prefetches chunks by the copy engine. They lie in database `number` or in later databases.
// Ignores errors: the block that searches a database reports them. Out of line, because it has
// several callers, and waits anyway.
GPUFS_HD GPUFS_OUT_OF_LINE inline void bring(const block_group g, const mount_ref& fs,
                                             const workspace& all, std::uint32_t number,
                                             const plan::chunk_range chunks) {
  const std::uint64_t all_end = chunks.end < all.how.chunks ? chunks.end : all.how.chunks;
  for (; all.files[number].first_chunk < all_end; ++number) {
    const vectors_place& d = all.files[number];
    const std::uint64_t next = all.files[number + 1].first_chunk;
    const std::uint64_t begin = chunks.begin < d.first_chunk ? d.first_chunk : chunks.begin;
    const std::uint64_t end = all_end < next ? all_end : next;
    if (begin >= end) continue;
    const std::uint64_t row = (begin - d.first_chunk) * all.how.rows,
                        most = (end - begin) * all.how.rows;
    const std::int32_t fd = gopen(g, fs, all.paths[number], O_RDONLY);
    if (fd < 0) continue;
    (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(d.offset + row * d.stride),
                   (d.count - row < most ? d.count - row : most) * d.stride, POSIX_FADV_WILLNEED);
    (void)gclose(g, fs, fd);  // a file that is only read
  }
}

// Reads the queries and packs them for the matrix units, one query a warp at a time. The last block
// prefetches the first chunk, which arrives meanwhile.
template <int Parts>
struct pack_queries {
  static constexpr int block_threads_max = tile::threads;
  // few blocks, so each thread may have more registers
  static constexpr int blocks_per_multiprocessor = 2;
  workspace all;

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    if (all.how.advises && block_group::grid_rank() + 1 == block_group::grid_size())
      bring(g, fs, all, 1, {0, 1});
    const vectors_place& file = all.files[0];
    const std::int32_t fd = job::open_to_read(g, fs, all.paths[0], 0, all.failed);
    if (fd < 0) return;
    const warp_group warp = g.warp();
    job::by_turns(file.count, g.warp_count(), [&](std::uint64_t first, std::uint64_t end) {
      const std::uint64_t q = first + g.warp_rank(), dimensions = all.how.dimensions;
      // after an error each call might wait for its timeout
      if (q >= end || warp.all(all.failed.told())) return;
      float* const numbers = all.numbers + q * dimensions;
      if (!job::read_all(warp, fs, fd, 0, all.failed, reinterpret_cast<char*>(numbers),
                         dimensions * sizeof(float), file.offset + q * file.stride))
        return;
      warp.sync();  // members pack what others read
      const float squares = pack_vector<Parts>(warp, numbers, dimensions, all.slices, q);
      if (warp.is_leader()) all.squares[q] = squares;
      all.to.begin(warp, q);
    });
    (void)gclose(g, fs, fd);  // a file that is only read
  }
};

// Compares chunks of the databases with tiles of the queries, pair by pair, in order. A block maps
// a chunk's vectors, multiplies them with the queries in place, and computes exact distances for
// candidates.
template <int Parts>
struct scan {
  static constexpr int block_threads_max = tile::threads;
  static constexpr int blocks_per_multiprocessor = plan::blocks_per_multiprocessor;
  workspace all;

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    auto& memory = tile::slice_memory<scan_memory<Parts>>();
    const plan& how = all.how;
    std::uint32_t number = 1, open_number = 0;
    std::int32_t fd = -1;
    bool has_waited = false;
    for (;;) {
      const std::uint64_t pairs = how.chunks * how.tiles;
      std::uint64_t pair = pairs;
      if (g.is_leader() && !all.failed.told()) pair = all.done->next_pair.fetch_add_relaxed(1);
      pair = g.broadcast(pair);
      if (pair >= pairs) break;
      const std::uint64_t chunk = pair / how.tiles, first_query = pair % how.tiles * tile::side;
      while (all.files[number + 1].first_chunk <= chunk) ++number;
      const vectors_place& d = all.files[number];
      const std::uint64_t row = (chunk - d.first_chunk) * how.rows, index = d.first_index + row;
      const std::uint64_t end_query =
          how.queries - first_query < tile::side ? how.queries : first_query + tile::side;

      // The block of the first tile prefetches later chunks. It does so even if its own tile needs
      // no more, because other tiles may.
      const bool brings = how.advises && first_query == 0;
      if (brings && chunk <= how.early) bring(g, fs, all, number, how.brought_at_first(chunk));
      if (matched(g, chunk != 0 && !has_waited) == how.queries &&
          all.to.settled(g, 0, how.queries, index))
        break;
      has_waited = chunk != 0;
      if (brings && chunk > how.early) bring(g, fs, all, number, how.brought_at_first(chunk));
      if (brings) bring(g, fs, all, number, how.brought_ahead(chunk));
      if (all.to.settled(g, first_query, end_query, index)) continue;

      if (fd >= 0 && number != open_number) {
        (void)gclose(g, fs, fd);  // a file that is only read
        fd = -1;
      }
      if (fd < 0) fd = job::open_to_read(g, fs, all.paths[number], number, all.failed);
      open_number = number;
      if (fd < 0) break;
      const std::uint64_t left = d.count - row;
      const auto count = static_cast<std::uint32_t>(left < how.rows ? left : how.rows);
      if (!compare(g, fs, fd, memory, number, row, count, first_query,
                   static_cast<std::uint32_t>(end_query - first_query)))
        break;
      // Release: pairs with the acquire of the block that waits for the first chunk, so that it
      // sees what has matched.
      if (chunk == 0 && g.is_leader()) (void)all.done->first_looked_through.fetch_add_release(1);
    }
    if (fd >= 0) (void)gclose(g, fs, fd);
  }

 private:
  // Returns how many queries have a match, the same for all members, because other blocks change
  // the number meanwhile. `waits`: first waits until the first chunk is searched. That chunk may
  // have all that is wanted, or near vectors that spare other blocks exact distances. Its blocks
  // took their pairs earlier and never wait here. The wait has a limit, because the result does not
  // depend on it.
  GPUFS_HD std::uint64_t matched(const block_group& g, bool waits) const {
    constexpr std::uint64_t wait_ns_max = 1'000'000'000;
    std::uint64_t count = 0;
    if (g.is_leader()) {
      if (waits) {
        const atomic_word<std::uint64_t>& first = all.done->first_looked_through;
        const std::uint64_t start = platform::now_ns();
        for (std::uint32_t attempt = 0;
             first.load_for_wait() < all.how.tiles && !all.failed.told() &&
             platform::now_ns() - start < wait_ns_max;
             ++attempt)
          platform::pause(attempt);
        first.end_wait();
      }
      count = all.done->matched.load_relaxed();
    }
    return g.broadcast(count);
  }

  GPUFS_HD bool compare(const block_group& g, const mount_ref& fs, std::int32_t fd,
                        scan_memory<Parts>& memory, std::uint32_t number, std::uint64_t row,
                        std::uint32_t count, std::uint64_t first_query,
                        std::uint32_t query_count) const {
    const vectors_place& d = all.files[number];
    const std::uint64_t begin = d.offset + row * d.stride, dimensions = all.how.dimensions;
    tile::product<Parts> products(reinterpret_cast<char*>(&memory + 1));
    memory.squares.clear(g);
    const tile::rows_of_file rows{fd, begin, d.stride, count, dimensions, all.how.part_columns};
    const tile::panel packed{all.slices,
                             static_cast<std::uint32_t>(tile::panel::slices_in(dimensions))};
    const std::int32_t wrong = tile::add_mapped_product<Parts, float>(
        g, fs, products, memory.stages, memory.rows, rows, packed, first_query / tile::side,
        memory.squares.adding());
    if (wrong != 0) {
      if (g.is_leader()) all.failed.tell(number, wrong);
      return false;
    }
    bound_distances(g, memory, products, all.squares + first_query, query_count,
                    distance_error::of<Parts>(dimensions));
    look_through(g, memory, all.to, first_query, query_count, d.first_index + row, count,
                 [&](const warp_group& warp, std::uint64_t query, std::uint32_t r) {
                   return exact(warp, fs, fd, number, begin + r * d.stride, query);
                 });
    g.sync();  // before the next products
    return true;
  }

  // Returns the squared distance of a vector from a query. If the vector can no longer be read,
  // reports the error and returns a negative number. Out of line, with its own registers: the
  // caller has none left.
  GPUFS_HD GPUFS_OUT_OF_LINE double exact(const warp_group warp, const mount_ref& fs,
                                          std::int32_t fd, std::uint32_t number, std::uint64_t at,
                                          std::uint64_t query) const {
    const std::uint64_t dimensions = all.how.dimensions;
    double sum = 0;
    for (std::uint64_t done = 0; done < dimensions;) {
      const mapping m = gmmap(warp, fs, fd, static_cast<std::int64_t>(at + done * sizeof(float)),
                              (dimensions - done) * sizeof(float));
      if (m.bytes < static_cast<std::int64_t>(sizeof(float))) {
        (void)gmunmap(warp, fs, m);
        if (warp.is_leader()) all.failed.tell(number, m.bytes);
        return -1;
      }
      const std::uint64_t here = static_cast<std::uint64_t>(m.bytes) / sizeof(float);
      const auto* numbers = reinterpret_cast<const float*>(m.data);
      add_squared_distance(warp, sum, numbers, all.numbers + query * dimensions + done, done, here);
      (void)gmunmap_unfenced(warp, fs, m, sum);
      done += here;
    }
    return sum_of(warp, sum);
  }
};

template <int Parts>
void launch(const job::job& work, const scan<Parts>& kernel) {
  const plan& how = kernel.all.how;
  work.launch(kernel, how.chunks * how.tiles, how.blocks,
              tile::scratch_bytes<scan_memory<Parts>>(work.of().device() == device_kind::cpu));
}
// Launch the kernel. That of two parts has a source of its own, because it needs all optimizations
// (docs/decisions/build.md).
void start(const job::job& work, const scan<1>& kernel);
void start(const job::job& work, const scan<2>& kernel);

}  // namespace gpufs::search

// Compiled by nvcc where there is one, by the host compiler otherwise.
#include "search/search.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "device_array.hpp"
#include "job/job.hpp"
#include "search/kernels.cuh"
#include "tile/cut.hpp"

namespace gpufs::search {
namespace {

void check(const vectors_file& file, std::uint64_t dimensions) {
  if (file.offset % sizeof(float) != 0 || file.stride % sizeof(float) != 0)
    throw error(EINVAL, "numbers at places that are no multiple of their size", file.path);
  if (file.stride / sizeof(float) < dimensions) throw error(EINVAL, "vectors that overlap", file.path);
  if (file.offset > limits::file_bytes_max || file.count > (limits::file_bytes_max - file.offset) / file.stride)
    throw error(EINVAL, "more vectors than files have room for", file.path);
}

std::vector<std::string> paths_of(const question& q) {
  std::vector<std::string> paths{q.queries.path};
  for (const vectors_file& d : q.databases) paths.push_back(d.path);
  return paths;
}

// How the databases are cut into chunks of vectors, and which the copy engine brings, for which the cache has room, too.
struct database_cut : tile::cut {
  std::uint32_t brought = 0, ahead = 0;  // chunks (scan)
  bool advises;
  // Blocks with one tile have a chunk each under way: half as many keep the bus as busy, and need half as much of the cache.
  database_cut(const mount& m, std::uint64_t stride, std::uint64_t dimensions, std::uint64_t tiles)
      : cut(m, m.multiprocessors() * (tiles == 1 ? 1 : scan<1>::blocks_per_multiprocessor), stride, dimensions,
            sizeof(float)) {
    const std::uint64_t chunk_pages = pages_of(rows * stride);
    advises = chunk_pages <= pages / blocks;
    // As much as the copy engine brings at once; and far enough ahead that several such are under way.
    brought = static_cast<std::uint32_t>(std::max<std::uint64_t>(m.options().bulk_bytes / (rows * stride), 1));
    const std::uint64_t under_way = (blocks / tiles + 2 * brought) * chunk_pages;
    const std::uint64_t room = pages > under_way ? (pages - under_way) / chunk_pages : 0;
    ahead = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, tiles == 1 ? blocks : chunks_ahead));
    if (ahead < brought || m.options().bulk_bytes == 0) brought = ahead = 0;
  }

 private:
  static constexpr std::uint64_t chunks_ahead = 64;
};

}  // namespace

void check(const question& q) {
  if (q.dimensions == 0) throw error(EINVAL, "vectors without numbers");
  if (q.dimensions >= dimensions_end) throw error(EINVAL, "vectors of 2^30 numbers or more");
  if (std::isnan(q.threshold) || q.threshold < 0)
    throw error(EINVAL, "a threshold is a distance: a number, and not below zero");
  if (q.top > top_max) throw error(EINVAL, "more of the nearest than " + std::to_string(top_max));
  check(q.queries, q.dimensions);
  for (const vectors_file& d : q.databases) check(d, q.dimensions);
}

namespace {

// `Parts`: of numbers, in their products (distance_error).
template <int Parts>
std::vector<found> search_in(const mount& m, const question& q, bool alone) {
  const std::uint64_t length = std::max<std::uint32_t>(q.top, 1), queries = q.queries.count;
  std::vector<found> lists(queries * length, {HUGE_VAL, nothing});
  if (queries == 0 || q.databases.empty()) return lists;

  std::uint64_t stride = 0;
  for (const vectors_file& d : q.databases) stride = std::max(stride, d.stride);
  const std::uint64_t tiles = ceiling(queries, tile::side);
  const database_cut pieces(m, stride, q.dimensions, tiles);

  const job::job work(m, "search", paths_of(q), alone);
  std::vector<database> databases;
  std::uint64_t index = 0, chunk = 0;
  for (const vectors_file& d : q.databases) {
    databases.push_back({work.path(databases.size() + 1), d.offset, d.stride, d.count, index, chunk});
    index += d.count;
    chunk += ceiling(d.count, pieces.rows);
  }
  databases.push_back({nullptr, 0, 0, 0, index, ~std::uint64_t{0}});
  const std::uint64_t pairs = chunk * tiles;

  const double bound = q.threshold * q.threshold;
  const query_state fresh{{0}, 0, {bits_of(bound)}, {nothing}};
  const device_array<float> numbers(m, queries * q.dimensions), squares(m, queries);
  const device_array<char> slices(m, tile::panel::bytes(queries, q.dimensions, Parts));
  const device_array<found> found_lists(m, lists);
  const device_array<query_state> states(m, std::vector<query_state>(queries, fresh));
  const device_array<database> known(m, databases);
  const device_array<atomic_word<std::uint64_t>> words(m, 3);

  work.read(0, q.queries.offset, q.dimensions * sizeof(float), q.queries.stride, queries, numbers.data());
  const std::size_t memory = tile::scratch_bytes(m, sizeof(scan_memory<Parts>));
  using pack = pack_queries<Parts>;
  work.launch(pack{{}, numbers.data(), queries, q.dimensions, slices.data(), squares.data()},
              tiles * pack::parts_of_tile(q.dimensions), work.many(), pack::scratch_bytes);
  const answers to{found_lists.data(), states.data(), words.data(), queries, static_cast<std::uint32_t>(length),
                   q.top == 0,         bound};
  const auto look = [&](std::uint64_t first, std::uint64_t end, std::uint32_t word) {
    const scan<Parts> kernel{known.data(),
                             pieces.rows,
                             q.dimensions,
                             pieces.part_columns,
                             first == 0 ? 0 : pieces.brought,
                             first == 0 ? 0 : pieces.ahead,
                             pieces.advises,
                             numbers.data(),
                             squares.data(),
                             {slices.data(), static_cast<std::uint32_t>(tile::panel::slices_in(q.dimensions))},
                             to,
                             work.failed(),
                             first,
                             end,
                             words.data() + word};
    if (first < end) work.launch(kernel, end - first, pieces.blocks, memory);
  };
  // The first chunk by itself: it may hold all that is wanted, or much that is near, which spares all the others a closer look.
  look(0, std::min(tiles, pairs), 1);
  look(tiles, pairs, 2);
  work.finish();
  m.copy_to_host(lists.data(), found_lists.data(), lists.size() * sizeof(found));
  return lists;
}

}  // namespace

std::vector<found> search(const mount& m, const question& q, bool alone) {
  check(q);
  // Of distances the nearest lie close together: to tell them apart takes more than to see that none is below a threshold.
  return q.top == 0 ? search_in<1>(m, q, alone) : search_in<2>(m, q, alone);
}

}  // namespace gpufs::search

// What was found of each query so far, and how a tile of products is looked through for more.
#pragma once

#include "gpufs/gpufs.cuh"
#include "search/search.hpp"
#include "tile/rows.cuh"

namespace gpufs::search {

// Bits of numbers in the order of the numbers. NaN, of whose distance nothing is known, comes first.
GPUFS_HD inline std::uint32_t ordered(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return 0;
  return bits ^ ((bits >> 31) != 0 ? ~0u : 0x8000'0000u);
}
GPUFS_HD inline std::uint64_t bits_of(double x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
GPUFS_HD inline double double_of(std::uint64_t bits) {
  double x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The group's sum in its members' order of halves, the same in all of them.
template <class Group>
GPUFS_HD double sum_of(const Group& g, double value) {
  for (std::uint32_t k = g.size() / 2; k != 0; k /= 2) value += g.from(value, g.rank() ^ k);
  return value;
}

// Of a query.
struct query_state {
  // Guards the query's list, for as long as one entry takes to be put in: no wait is within.
  atomic_word<std::uint32_t> latch;
  std::uint32_t reserved;
  // What more is wanted has at most this squared distance, and (of first matches) a smaller index. Read without the latch: both only
  // fall, and who sees an old value looks at a vector in vain.
  atomic_word<std::uint64_t> bound;
  atomic_word<std::uint64_t> first;
};

struct answers {
  found* lists;  // of each query `length`, ordered; the rest `nothing`
  query_state* states;
  atomic_word<std::uint64_t>* matched;  // queries that have a match
  std::uint64_t queries;
  std::uint32_t length;
  bool is_first;  // whether first matches are wanted
  double squared_threshold;

  // Puts one in, unless the list is full of better ones. By a warp.
  template <class Group>
  GPUFS_HD void add(const Group& g, std::uint64_t query, const found& f) const {
    query_state& state = states[query];
    if (g.is_leader()) {
      // Acquires what the last holder's release published: its list. Holders wait for nothing, so this ends.
      for (std::uint32_t attempt = 0;; ++attempt) {
        std::uint32_t open = 0;
        if (state.latch.compare_exchange_acquire(open, 1)) break;
        platform::pause(attempt);
      }
    }
    g.sync();
    found* const list = lists + query * length;
    std::uint64_t better = 0;
    for (std::uint32_t i = g.rank(); i < length; i += g.size()) better += comes_first(list[i], f) ? 1 : 0;
    const auto place = static_cast<std::uint32_t>(g.sum(better));
    if (place < length) {
      // From the end on, so that none is overwritten before it was moved.
      for (std::uint32_t end = length - 1; end > place;) {
        const std::uint32_t count = end - place < g.size() ? end - place : g.size();
        found moved{};
        if (g.rank() < count) moved = list[end - count + g.rank()];
        g.sync();
        if (g.rank() < count) list[end - count + g.rank() + 1] = moved;
        g.sync();
        end -= count;
      }
      if (g.is_leader()) {
        if (place == 0 && list[0].index == nothing) matched->add_relaxed(1);
        list[place] = f;
        if (is_first) state.first.store_relaxed(f.index);
        else if (list[length - 1].squared_distance < squared_threshold)
          state.bound.store_relaxed(bits_of(list[length - 1].squared_distance));
      }
    }
    g.sync();
    if (g.is_leader()) state.latch.store_release(0);
  }

  // Whether nothing from `index` on can still be wanted of queries [begin, end). By a block.
  GPUFS_HD bool settled(const block_group& g, std::uint64_t begin, std::uint64_t end, std::uint64_t index) const {
    if (!is_first) return false;
    bool all = true;
    for (std::uint64_t q = begin + g.rank(); q < end; q += g.size())
      all = all && states[q].first.load_relaxed() < index;
    return g.all(all);
  }

 private:
  GPUFS_HD bool comes_first(const found& a, const found& b) const {
    if (is_first || a.squared_distance == b.squared_distance) return a.index < b.index;
    return a.squared_distance < b.squared_distance;
  }
};

// Squares of vectors' numbers, summed up by all who load them.
struct square_sums {
  static constexpr std::uint32_t parts = 8;
  float of[tile::side][parts];

  GPUFS_HD void clear(const block_group& g) {
    for (std::uint32_t i = g.rank(); i < tile::side * parts; i += g.size()) of[i / parts][i % parts] = 0;
  }
  // As slice_on_its_way calls it: each part belongs to one thread.
  template <std::size_t N>
  GPUFS_HD void add(std::uint32_t row, std::uint32_t part, const float (&numbers)[N]) {
    float sum = 0;
    GPUFS_UNROLL
    for (std::size_t k = 0; k < N; ++k) sum += numbers[k] * numbers[k];
    of[row][part] += sum;
  }
  GPUFS_HD float sum(std::uint32_t row) const {
    float sum = 0;
    GPUFS_UNROLL
    for (std::uint32_t i = 0; i < parts; ++i) sum += of[row][i];
    return sum;
  }
};

// How far what is computed of a squared distance may be off, as a part of the sum of both vectors' squares: two roundings to bfloat16, of
// at most 2^-8 each, in products whose sum's size is at most half of that of the squares; and the roundings, of at most 2^-22, of sums
// that are added up a few at a time.
GPUFS_HD inline float relative_error(std::uint64_t dimensions) {
  const float sums = (static_cast<float>(dimensions) / 8 + 64) * 0x1p-22f;
  return 0x1.01p-7f + sums;
}

// What a block keeps in its scratch memory.
struct scan_memory {
  // Of each query of a tile, for each vector of one, how near it may be, in order (ordered()); in the place of the slices. A row more than
  // there are vectors, so that neighbours lie in different banks.
  static constexpr std::uint32_t pitch = tile::side + 1, taken = ~0u;
  union {
    char stages[tile::stages_bytes<1>];
    std::uint32_t nearness[tile::side * pitch];
  };
  tile::row_table rows;
  square_sums squares;
};

// Of squared distances the least that they can be, from products. By a block.
GPUFS_HD inline void bound_distances(const block_group& g, scan_memory& memory, const tile::product& products,
                                     const float* query_squares, std::uint32_t queries, float error) {
  // Each thread's own products; the barrier behind them is that of add_product().
  products.each([&](std::uint32_t row, std::uint32_t query, float product) {
    const float squares = memory.squares.sum(row) + (query < queries ? query_squares[query] : 0);
    const float least = is_finite(squares) ? squares * (1 - error) - 2 * product : 0;
    memory.nearness[query * scan_memory::pitch + row] = ordered(least);
  });
  g.sync();
}

// Looks for what may be near enough among `count` vectors, the first of which has `first_index`, and queries [first_query, ...). Calls
// `exact(warp, query, row)` for the squared distance, less than 0 if it cannot be had. By a block, whose warps take a query each.
template <class Exact>
GPUFS_HD void look_through(const block_group& g, scan_memory& memory, const answers& to, std::uint64_t first_query,
                           std::uint32_t queries, std::uint64_t first_index, std::uint32_t count, const Exact& exact) {
  const warp_group warp = g.warp();
  constexpr std::uint64_t none = ~std::uint64_t{0};
  for (std::uint32_t n = g.warp_rank(); n < queries; n += g.warp_count()) {
    const query_state& state = to.states[first_query + n];
    std::uint32_t* const near = memory.nearness + n * scan_memory::pitch;
    for (;;) {
      // One more, as it is rounded.
      const std::uint32_t bound = ordered(static_cast<float>(double_of(state.bound.load_relaxed()))) + 1;
      const std::uint64_t end = to.is_first ? state.first.load_relaxed() : nothing;
      std::uint64_t mine = none;
      for (std::uint32_t m = warp.rank(); m < count; m += warp.size()) {
        if (near[m] > bound || near[m] == scan_memory::taken || first_index + m >= end) continue;
        const std::uint64_t key = to.is_first ? m : std::uint64_t{near[m]} << 32 | m;
        mine = key < mine ? key : mine;
      }
      if (warp.all(mine == none)) break;
      const auto m = static_cast<std::uint32_t>(warp.least(mine));
      if (warp.is_leader()) near[m] = scan_memory::taken;
      warp.sync();
      const double squared = exact(warp, first_query + n, m);
      if (squared < 0) return;
      if (squared <= to.squared_threshold) to.add(warp, first_query + n, {squared, first_index + m});
    }
  }
}

// The squared distance of two vectors that lie in memory, in float64: the member's part.
GPUFS_HD inline double squared_distance(const warp_group& g, const float* a, const float* b, std::uint64_t count) {
  double sum = 0;
  for (std::uint64_t i = g.rank(); i < count; i += g.size()) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

}  // namespace gpufs::search

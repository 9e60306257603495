// The vectors found so far for each query, and how a tile of products is searched for more.
#pragma once

#include <limits>

#include "common/arithmetic.cuh"
#include "gpufs/gpufs.cuh"
#include "search/search.hpp"
#include "tile/numbers.cuh"
#include "tile/rows.cuh"

namespace gpufs::search {

// Maps numbers to bits in the same order. NaN comes first, because nothing is known of its
// distance.
GPUFS_HD inline std::uint32_t ordered(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return 0;
  return bits ^ ((bits >> 31) != 0 ? ~0u : 0x8000'0000u);
}
inline constexpr double infinite = std::numeric_limits<double>::infinity();

// The state of one query.
struct query_state {
  // Guards the query's list. Held while one entry is inserted; the holder never waits.
  atomic_word<std::uint32_t> latch;
  std::uint32_t reserved;
  // A further vector must have at most this squared distance, and (for first matches) a smaller
  // index. Read without the latch: both only decrease, and a reader of an old value checks a vector
  // in vain.
  atomic_word<std::uint64_t> bound;
  atomic_word<std::uint64_t> first;
};

struct answers {
  found* lists;  // `length` entries for each query, ordered; unused entries are `nothing`
  query_state* states;
  atomic_word<std::uint64_t>* matched;  // queries that have a match
  std::uint64_t queries;
  std::uint32_t length;
  bool is_first;  // whether first matches are wanted
  double squared_threshold;

  // Called by a warp. Resets a query: nothing is found yet.
  template <class Group>
  GPUFS_HD void begin(const Group& g, std::uint64_t query) const {
    for (std::uint32_t i = g.rank(); i < length; i += g.size())
      lists[query * length + i] = {infinite, nothing};
    if (g.is_leader()) states[query] = {{0}, 0, {bits_of(squared_threshold)}, {nothing}};
  }

  // Called by a warp. Inserts a vector, unless the list is full of better ones.
  template <class Group>
  GPUFS_HD void add(const Group& g, std::uint64_t query, const found& f) const {
    query_state& state = states[query];
    if (g.is_leader()) {
      // Acquire: pairs with the release of the previous holder, which publishes the list. Holders
      // never wait, so this loop ends.
      for (std::uint32_t attempt = 0;; ++attempt) {
        std::uint32_t open = 0;
        if (state.latch.compare_exchange_acquire(open, 1)) break;
        platform::pause(attempt);
      }
    }
    g.sync();
    found* const list = lists + query * length;
    std::uint64_t better = 0;
    for (std::uint32_t i = g.rank(); i < length; i += g.size())
      better += comes_first(list[i], f) ? 1 : 0;
    const auto place = static_cast<std::uint32_t>(g.sum(better));
    if (place < length) {
      // From the end on, so that no entry is overwritten before it is moved.
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

  // Collective of the block. Whether queries [begin, end) need nothing from `index` on.
  GPUFS_HD bool settled(const block_group& g, std::uint64_t begin, std::uint64_t end,
                        std::uint64_t index) const {
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

// Squares of the vectors' numbers, summed up by all threads that load them.
struct square_sums {
  static constexpr std::uint32_t parts = 8;
  float of[tile::side][parts];

  GPUFS_HD void clear(const block_group& g) {
    for (std::uint32_t i = g.rank(); i < tile::side * parts; i += g.size())
      of[i / parts][i % parts] = 0;
  }
  // Called by slice_on_its_way. Each part belongs to one thread.
  template <std::size_t N>
  GPUFS_HD void add(std::uint32_t row, std::uint32_t part, const float (&numbers)[N]) {
    float sum = 0;
    GPUFS_UNROLL
    for (std::size_t k = 0; k < N; ++k) sum += numbers[k] * numbers[k];
    of[row][part] += sum;
  }
  // The callback for the code that loads the rows.
  GPUFS_HD auto adding() {
    return [this](std::uint32_t row, std::uint32_t part, const float (&numbers)[4]) {
      add(row, part, numbers);
    };
  }
  GPUFS_HD float sum(std::uint32_t row) const {
    float sum = 0;
    GPUFS_UNROLL
    for (std::uint32_t i = 0; i < parts; ++i) sum += of[row][i];
    return sum;
  }
};

// How far a computed squared distance may be wrong. `relative` is a factor of the sum of both
// vectors' squares (half of that sum limits the sum of the products' magnitudes). `absolute` is for
// what is too small for float32's normal numbers.
//
// Error of the parts: one bfloat16 part differs from its number by at most 2^-8 of it. Two parts
// differ by 2^-16, and their product lacks the product of the second parts. Error of the sums: a
// matrix unit truncates each of 16 products, and the sum before, below 2^-23 of the largest, once
// for one part and three times for two. The CPU device, and the sums of squares, round less.
struct distance_error {
  float relative, absolute;
  template <int Parts>
  GPUFS_HD static distance_error of(std::uint64_t dimensions) {
    static_assert(Parts == 1 || Parts == 2, "more than needed");
    const float sums = (static_cast<float>(dimensions) + 64) * (Parts == 1 ? 0x1p-22f : 0x1p-21f);
    return {(Parts == 1 ? 0x1.01p-7f : 0x1.81p-15f) + sums,
            static_cast<float>(dimensions) * 0x1p-124f};
  }
};

// A block's scratch memory.
template <int Parts>
struct scan_memory {
  // For each query of a tile and each vector of a chunk: the least possible distance, ordered
  // (ordered()). In the place of the slices. The pitch is one more than the number of vectors, so
  // that neighbours lie in different banks.
  static constexpr std::uint32_t pitch = tile::side + 1, taken = ~0u;
  union {
    char stages[tile::stages_bytes<Parts>];
    std::uint32_t nearness[tile::side * pitch];
  };
  tile::row_table rows;
  square_sums squares;
};

// Called by a warp. Packs a vector as row `row` of a panel. Returns the sum of its squares.
template <int Parts>
GPUFS_HD float pack_vector(const warp_group& g, const float* numbers, std::uint64_t dimensions,
                           char* slices, std::uint64_t row) {
  constexpr std::uint32_t eights = tile::depth / 8;
  const std::uint64_t in_row = tile::panel::slices_in(dimensions);
  slices += tile::panel::place<Parts>(row / tile::side, 0, in_row);
  float sum = 0;
  for (std::uint64_t i = g.rank(); i < in_row * eights; i += g.size()) {
    float some[8];
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < 8; ++k) {
      some[k] = i * 8 + k < dimensions ? numbers[i * 8 + k] : 0;
      sum += some[k] * some[k];
    }
    tile::store_eight<Parts>(some, slices + i / eights * (tile::slice_bytes * Parts),
                             row % tile::side, i % eights);
  }
  return sum_of(g, sum);
}

// Collective of the block. Computes from products the least possible squared distances.
template <int Parts>
GPUFS_HD void bound_distances(const block_group& g, scan_memory<Parts>& memory,
                              const tile::product<Parts>& products, const float* query_squares,
                              std::uint32_t queries, const distance_error& error) {
  // Each thread handles its own products. The preceding barrier is that of add_product().
  products.each([&](std::uint32_t row, std::uint32_t query, float product) {
    const float squares = memory.squares.sum(row) + (query < queries ? query_squares[query] : 0);
    const float least =
        is_finite(squares) ? squares * (1 - error.relative) - 2 * product - error.absolute : 0;
    memory.nearness[query * scan_memory<Parts>::pitch + row] = ordered(least);
  });
  g.sync();
}

// Collective of the block. Searches `count` vectors, the first of which has `first_index`, for
// candidates of queries [first_query, ...). Each warp takes a query. Calls `exact(warp, query,
// row)` for the squared distance; a negative result means an error.
template <int Parts, class Exact>
GPUFS_HD void look_through(const block_group& g, scan_memory<Parts>& memory, const answers& to,
                           std::uint64_t first_query, std::uint32_t queries,
                           std::uint64_t first_index, std::uint32_t count, const Exact& exact) {
  const warp_group warp = g.warp();
  constexpr std::uint64_t none = ~std::uint64_t{0};
  constexpr std::uint32_t pitch = scan_memory<Parts>::pitch, taken = scan_memory<Parts>::taken;
  for (std::uint32_t n = g.warp_rank(); n < queries; n += g.warp_count()) {
    const query_state& state = to.states[first_query + n];
    std::uint32_t* const near = memory.nearness + n * pitch;
    for (;;) {
      // Plus one, because the conversion rounds.
      const std::uint32_t bound =
          ordered(static_cast<float>(double_of(state.bound.load_relaxed()))) + 1;
      const std::uint64_t end = to.is_first ? state.first.load_relaxed() : nothing;
      std::uint64_t mine = none;
      for (std::uint32_t m = warp.rank(); m < count; m += warp.size()) {
        if (near[m] > bound || near[m] == taken || first_index + m >= end) continue;
        const std::uint64_t key = to.is_first ? m : std::uint64_t{near[m]} << 32 | m;
        mine = key < mine ? key : mine;
      }
      if (warp.all(mine == none)) break;
      const auto m = static_cast<std::uint32_t>(warp.least(mine));
      if (warp.is_leader()) near[m] = taken;
      warp.sync();
      const double squared = exact(warp, first_query + n, m);
      if (squared < 0) return;
      if (squared <= to.squared_threshold)
        to.add(warp, first_query + n, {squared, first_index + m});
    }
  }
}

// Adds the member's part of the squared distance of two vectors, for the numbers [at, at + count)
// that lie here. Each group of four adjacent numbers belongs to one member, which adds them in
// order. So equal vectors have equal distances, however their pages divide them.
GPUFS_HD inline void add_squared_distance(const warp_group& g, double& sum, const float* a,
                                          const float* b, std::uint64_t at, std::uint64_t count) {
  constexpr std::uint64_t four = sizeof(vector16) / sizeof(float), at_once = 4;
  const std::uint64_t end = at + count, step = four * g.size();
  const auto add = [&](float x, float y) {
    const double difference = static_cast<double>(x) - static_cast<double>(y);
    sum += difference * difference;
  };
  const auto add_four = [&](const vector16& x, const vector16& y) {
    add(float_of(x.x), float_of(y.x));
    add(float_of(x.y), float_of(y.y));
    add(float_of(x.z), float_of(y.z));
    add(float_of(x.w), float_of(y.w));
  };
  const auto vector_at = [](const float* p) { return *reinterpret_cast<const vector16*>(p); };
  // The first of the member's groups of four with numbers that lie here.
  std::uint64_t i = (at / four + ((g.rank() - at / four) & (g.size() - 1))) * four;
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(a - at % four) |
                         reinterpret_cast<std::uintptr_t>(b - at % four)) &
                        (sizeof(vector16) - 1)) == 0;
  for (; i < end; i += step) {
    // Several loads are in flight.
    for (; aligned && i >= at && i + (at_once - 1) * step + four <= end; i += at_once * step) {
      vector16 x[at_once], y[at_once];
      GPUFS_UNROLL
      for (std::uint64_t k = 0; k < at_once; ++k) x[k] = vector_at(a + (i - at) + k * step);
      GPUFS_UNROLL
      for (std::uint64_t k = 0; k < at_once; ++k) y[k] = vector_at(b + (i - at) + k * step);
      GPUFS_UNROLL
      for (std::uint64_t k = 0; k < at_once; ++k) add_four(x[k], y[k]);
    }
    for (std::uint64_t k = i < at ? at : i; k < i + four && k < end; ++k) add(a[k - at], b[k - at]);
  }
}

}  // namespace gpufs::search

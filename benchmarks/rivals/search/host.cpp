#include <algorithm>
#include <atomic>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "common/arithmetic.cuh"
#include "job/in_threads.hpp"
#include "rivals/host.hpp"
#include "rivals/product.hpp"
#include "rivals/search/rivals.hpp"

namespace gpufs::search {
namespace {

constexpr std::uint64_t panel_queries = rival::panel_width;  // multiplied together
constexpr std::uint64_t few_queries = 4;     // of a panel: so few are multiplied one by one
constexpr std::uint64_t block_vectors = 64;  // multiplied with a panel
constexpr std::uint64_t block_numbers =
    1024;  // of each vector at a time, so that all fit into the second-level cache
constexpr std::uint64_t chunk_bytes = 1 << 20;  // of a database, that a thread takes

// How far sums of products may be wrong: a factor of the sum of both vectors' squares, and a part
// for numbers that are too small for it.
struct sum_error {
  float relative, absolute;
  explicit sum_error(std::uint64_t dimensions)
      : relative(static_cast<float>(std::min(dimensions, block_numbers) + dimensions / 64 + 128) *
                 0x1p-23f),
        absolute(static_cast<float>(dimensions) * 0x1p-124f) {}
};

GPUFS_FOR_EACH_PROCESSOR float sum_of_products(const float* a, const float* b,
                                               std::uint64_t count) {
  constexpr int lanes = 64;
  float sums[lanes] = {};
  std::uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int k = 0; k < lanes; ++k) sums[k] += a[i + k] * b[i + k];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const float s : sums) sum += s;
  return sum;
}

GPUFS_FOR_EACH_PROCESSOR double squared_distance(const float* a, const float* b,
                                                 std::uint64_t count) {
  constexpr int lanes = 32;
  double sums[lanes] = {};
  std::uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int k = 0; k < lanes; ++k) {
      const double difference = static_cast<double>(a[i + k]) - static_cast<double>(b[i + k]);
      sums[k] += difference * difference;
    }
  }
  double sum = 0;
  for (; i < count; ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  for (const double s : sums) sum += s;
  return sum;
}

// Turns products with a panel's queries into the least possible squared distances. Reports for
// which queries any is within the bound.
GPUFS_FOR_EACH_PROCESSOR void bound_distances(float (*sums)[panel_queries], const float* squares,
                                              std::uint64_t count, const float* query_squares,
                                              const float* bounds, const sum_error& error,
                                              bool* near) {
  unsigned any[panel_queries] = {};
  for (std::uint64_t v = 0; v < count; ++v) {
    for (std::uint64_t q = 0; q < panel_queries; ++q) {
      const float both = squares[v] + query_squares[q];
      // Nothing is known of values that are not finite.
      const float least = both <= FLT_MAX
                              ? both * (1 - error.relative) - 2 * sums[v][q] - error.absolute
                              : -HUGE_VALF;
      sums[v][q] = least;
      any[q] |= least <= bounds[q] ? 1 : 0;
    }
  }
  for (std::uint64_t q = 0; q < panel_queries; ++q) near[q] = any[q] != 0;
}

// The answer to one query.
struct answer {
  std::mutex latch;  // guards the list
  std::vector<found> list;
  // A further vector must have at most this squared distance, and (for first matches) a smaller
  // index. Both only decrease.
  std::atomic<double> bound;
  std::atomic<std::uint64_t> first{nothing};
};

class search_job {
 public:
  search_job(const question& q, unsigned threads)
      : q_(q), threads_(threads), panels_(ceiling(q.queries.count, panel_queries)),
        error_(q.dimensions), squared_threshold_(q.threshold * q.threshold),
        packed_(panels_ * panel_queries * q.dimensions), query_squares_(panels_ * panel_queries),
        answers_(q.queries.count) {
    for (answer& a : answers_) a.list.reserve(length()), a.bound = squared_threshold_;
  }

  std::vector<found> run() {
    const auto map = [&](const vectors_file& file) {
      const std::uint64_t bytes =
          file.count == 0 ? 0 : (file.count - 1) * file.stride + q_.dimensions * sizeof(float);
      return std::make_unique<rival::mapped_file>(file.path, file.offset, bytes);
    };
    queries_ = map(q_.queries);
    std::uint64_t index = 0;
    for (const vectors_file& d : q_.databases) {
      mapped_.push_back(map(d));
      const std::uint64_t in_chunk = std::max<std::uint64_t>(chunk_bytes / d.stride, 1);
      for (std::uint64_t v = 0; v < d.count; v += in_chunk)
        chunks_.push_back({mapped_.back()->numbers<char>() + v * d.stride, d.stride,
                           std::min(in_chunk, d.count - v), index + v});
      index += d.count;
    }
    // All threads work on the first chunk: it may have all that is wanted, or near vectors.
    job::in_threads(threads_, [&](std::size_t) {
      for (std::uint64_t p = next_panel_++; p < panels_; p = next_panel_++) {
        pack(p);
        if (!chunks_.empty()) look_through(chunks_[0], p, p + 1);
      }
    });
    job::in_threads(threads_, [&](std::size_t) {
      for (std::uint64_t c = next_chunk_++; c < chunks_.size(); c = next_chunk_++) {
        if (!look_through(chunks_[c], 0, panels_)) break;
      }
    });
    std::vector<found> lists(answers_.size() * length(), {HUGE_VAL, nothing});
    for (std::uint64_t i = 0; i < answers_.size(); ++i)
      std::copy(answers_[i].list.begin(), answers_[i].list.end(),
                lists.begin() + static_cast<std::ptrdiff_t>(i * length()));
    return lists;
  }

 private:
  struct chunk {
    const char* vectors;
    std::uint64_t stride, count, first_index;
  };

  bool is_first() const { return q_.top == 0; }
  std::uint64_t length() const { return std::max<std::uint32_t>(q_.top, 1); }
  const float* query(std::uint64_t i) const {
    return reinterpret_cast<const float*>(queries_->numbers<char>() + i * q_.queries.stride);
  }

  void pack(std::uint64_t p) {
    const std::uint64_t first = p * panel_queries,
                        end = std::min(first + panel_queries, answers_.size());
    float* const panel = packed_.data() + first * q_.dimensions;
    populate(query(first), query(end - 1) + q_.dimensions);
    for (std::uint64_t k = 0; k < q_.dimensions; ++k) {
      for (std::uint64_t i = first; i < end; ++i)
        panel[k * panel_queries + (i - first)] = query(i)[k];
    }
    for (std::uint64_t i = first; i < end; ++i)
      query_squares_[i] = sum_of_products(query(i), query(i), q_.dimensions);
  }

  // Compares with panels [begin, end). Returns false if they need nothing from this chunk on.
  bool look_through(const chunk& c, std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> wanted;
    for (std::uint64_t p = begin; p < end; ++p) {
      if (!settled(p, c.first_index)) wanted.push_back(p);
    }
    if (wanted.empty()) return false;
    populate(c.vectors, c.vectors + c.count * c.stride);
    for (std::uint64_t v = 0; v < c.count; v += block_vectors) {
      const std::uint64_t count = std::min(block_vectors, c.count - v);
      const float* vectors[block_vectors];
      float squares[block_vectors];
      for (std::uint64_t i = 0; i < block_vectors; ++i) {
        vectors[i] =
            reinterpret_cast<const float*>(c.vectors + (v + std::min(i, count - 1)) * c.stride);
        if (i < count) squares[i] = sum_of_products(vectors[i], vectors[i], q_.dimensions);
      }
      for (const std::uint64_t p : wanted) {
        if (!settled(p, c.first_index + v)) compare(vectors, squares, count, c.first_index + v, p);
      }
    }
    return true;
  }

  bool settled(std::uint64_t p, std::uint64_t index) const {
    if (!is_first()) return false;
    const std::uint64_t end = std::min((p + 1) * panel_queries, answers_.size());
    for (std::uint64_t i = p * panel_queries; i < end; ++i) {
      if (answers_[i].first.load(std::memory_order_relaxed) >= index) return false;
    }
    return true;
  }

  // Compares a block of vectors with a panel of queries.
  void compare(const float* const (&vectors)[block_vectors], const float* squares,
               std::uint64_t count, std::uint64_t index, std::uint64_t p) {
    alignas(64) float sums[block_vectors][panel_queries] = {};
    const std::uint64_t first = p * panel_queries,
                        queries = std::min(panel_queries, answers_.size() - first);
    if (queries <= few_queries) {
      for (std::uint64_t v = 0; v < count; ++v) {
        for (std::uint64_t i = 0; i < queries; ++i)
          sums[v][i] = sum_of_products(query(first + i), vectors[v], q_.dimensions);
      }
    } else {
      multiply_panel(vectors, count, first, sums);
    }
    float bounds[panel_queries];
    std::fill_n(bounds, panel_queries, NAN);  // nothing is within NaN
    for (std::uint64_t i = 0; i < queries; ++i) bounds[i] = bound_of(answers_[first + i]);
    bool near[panel_queries];
    bound_distances(sums, squares, count, query_squares_.data() + first, bounds, error_, near);
    for (std::uint64_t i = 0; i < queries; ++i) {
      if (near[i]) look_closer(vectors, sums, count, index, first, i);
    }
  }

  void multiply_panel(const float* const (&vectors)[block_vectors], std::uint64_t count,
                      std::uint64_t first, float (*sums)[panel_queries]) const {
    const std::uint64_t whole = ceiling(count, rival::rows_together) * rival::rows_together;
    for (std::uint64_t k = 0; k < q_.dimensions; k += block_numbers) {
      const float* part[block_vectors];
      for (std::uint64_t i = 0; i < block_vectors; ++i) part[i] = vectors[i] + k;
      rival::add_products(part, whole, packed_.data() + first * q_.dimensions + k * panel_queries,
                          std::min(block_numbers, q_.dimensions - k), sums);
    }
  }

  // Rounded up.
  static float bound_of(const answer& a) {
    return std::nextafter(static_cast<float>(a.bound.load(std::memory_order_relaxed)), HUGE_VALF);
  }

  void look_closer(const float* const (&vectors)[block_vectors],
                   const float (&least)[block_vectors][panel_queries], std::uint64_t count,
                   std::uint64_t index, std::uint64_t first, std::uint64_t i) {
    answer& to = answers_[first + i];
    std::pair<float, std::uint64_t> near[block_vectors];
    std::uint64_t nears = 0;
    for (std::uint64_t v = 0; v < count; ++v) {
      if (least[v][i] <= bound_of(to)) near[nears++] = {is_first() ? 0 : least[v][i], v};
    }
    std::sort(near, near + nears);
    for (std::uint64_t n = 0; n < nears; ++n) {
      const std::uint64_t v = near[n].second;
      if (is_first() && index + v >= to.first.load(std::memory_order_relaxed)) return;
      if (!is_first() && near[n].first > bound_of(to)) return;
      const double squared = squared_distance(query(first + i), vectors[v], q_.dimensions);
      if (squared <= squared_threshold_) add(to, {squared, index + v});
    }
  }

  void add(answer& to, const found& f) const {
    const std::lock_guard lock(to.latch);
    const auto comes_first = [&](const found& a, const found& b) {
      if (is_first() || a.squared_distance == b.squared_distance) return a.index < b.index;
      return a.squared_distance < b.squared_distance;
    };
    const auto place = std::lower_bound(to.list.begin(), to.list.end(), f, comes_first);
    const bool is_full = to.list.size() == length();
    if (is_full && place == to.list.end()) return;
    const auto offset = place - to.list.begin();
    if (is_full) to.list.pop_back();
    to.list.insert(to.list.begin() + offset, f);
    if (is_first()) to.first.store(f.index, std::memory_order_relaxed);
    else if (to.list.size() == length())
      to.bound.store(to.list.back().squared_distance, std::memory_order_relaxed);
  }

  const question& q_;
  const unsigned threads_;
  const std::uint64_t panels_;
  const sum_error error_;
  const double squared_threshold_;
  // panels: for each number of a vector, those of all the panel's queries
  std::vector<float> packed_;
  std::vector<float> query_squares_;
  std::vector<answer> answers_;
  std::unique_ptr<rival::mapped_file> queries_;
  std::vector<std::unique_ptr<rival::mapped_file>> mapped_;
  std::vector<chunk> chunks_;
  std::atomic<std::uint64_t> next_panel_{0}, next_chunk_{1};
};

}  // namespace

rival_result search_on_host(const question& q, unsigned threads) {
  check(q);
  search_job work(q, threads);
  const auto start = std::chrono::steady_clock::now();
  std::vector<found> lists = work.run();
  return {std::move(lists),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace gpufs::search

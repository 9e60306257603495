// Compiled by nvcc if there is one, otherwise by the host compiler.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "common/owned_file.hpp"
#include "job/in_threads.hpp"
#include "rivals/search/rivals.hpp"

#if defined(__CUDACC__)
#include "rivals/cuda.hpp"
#include "search/nearest.cuh"
#endif

namespace gpufs::search {

#if defined(__CUDACC__)
namespace {

using rival::check;

// One warp for each query.
template <int Parts>
__global__ void pack_queries(const float* numbers, std::uint64_t dimensions, char* slices,
                             float* squares, const answers to) {
  const std::uint64_t q = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (q >= to.queries) return;
  const float sum =
      pack_vector<Parts>(this_warp(), numbers + q * dimensions, dimensions, slices, q);
  if (threadIdx.x % 32 == 0) squares[q] = sum;
  to.begin(this_warp(), q);
}

struct piece {
  const char* vectors;
  std::uint64_t stride, count, first_index;
};

// Compares a piece of a database with all queries, one block for each pair of tiles.
template <int Parts>
__global__ void __launch_bounds__(tile::threads, 2)
    look_through_piece(const piece p, const float* queries, const float* query_squares,
                       std::uint64_t dimensions, const tile::panel packed, const answers to) {
  const block_group g = this_block();
  auto& memory = tile::slice_memory<scan_memory<Parts>>();
  const std::uint64_t tiles = ceiling(to.queries, tile::side);
  const std::uint64_t row = blockIdx.x / tiles * tile::side,
                      first_query = blockIdx.x % tiles * tile::side;
  const std::uint64_t end_query =
      to.queries - first_query < tile::side ? to.queries : first_query + tile::side;
  if (to.settled(g, first_query, end_query, p.first_index + row)) return;
  const auto count =
      static_cast<std::uint32_t>(p.count - row < tile::side ? p.count - row : tile::side);
  const char* const vectors = p.vectors + row * p.stride;
  tile::product<Parts> products(nullptr);
  memory.squares.clear(g);
  tile::set_rows(g, memory.rows, vectors, p.stride, count);
  const auto columns = static_cast<std::uint32_t>(dimensions);
  tile::add_product<Parts, float>(
      g, products, memory.stages,
      {memory.rows, count, columns, packed, first_query / tile::side, 0},
      tile::are_aligned<float>(0, p.stride, columns), memory.squares.adding());
  const auto query_count = static_cast<std::uint32_t>(end_query - first_query);
  bound_distances(g, memory, products, query_squares + first_query, query_count,
                  distance_error::of<Parts>(dimensions));
  look_through(g, memory, to, first_query, query_count, p.first_index + row, count,
               [&](const warp_group& warp, std::uint64_t query, std::uint32_t r) {
                 double sum = 0;
                 add_squared_distance(warp, sum,
                                      reinterpret_cast<const float*>(vectors + r * p.stride),
                                      queries + query * dimensions, 0, dimensions);
                 return sum_of(warp, sum);
               });
}

// A part of a file, and its place among all databases.
struct file_part {
  const owned_file* file;
  std::uint64_t at, stride, count, first_index;
};

template <int Parts>
class pipeline {
 public:
  pipeline(const question& q, unsigned threads, std::uint64_t piece_bytes)
      : q_(q), threads_(threads), length_(std::max<std::uint32_t>(q.top, 1)),
        tiles_(ceiling(q.queries.count, tile::side)), numbers_(q.queries.count * q.dimensions),
        squares_(q.queries.count),
        slices_(tile::panel::bytes(q.queries.count, q.dimensions, Parts)),
        lists_(q.queries.count * length_), states_(q.queries.count), matched_(1) {
    std::uint64_t largest = q.queries.stride;
    for (const vectors_file& d : q.databases) largest = std::max(largest, d.stride);
    buffer_bytes_ = std::max(piece_bytes, largest);
    for (unsigned t = 0; t < 2 * threads; ++t) {
      buffers_.push_back(std::make_unique<rival::half_buffer>(buffer_bytes_));
      known_matched_.push_back(std::make_unique<pinned_count>());
    }
    to_ = {lists_.data(),
           states_.data(),
           matched_.data(),
           q.queries.count,
           static_cast<std::uint32_t>(length_),
           q.top == 0,
           q.threshold * q.threshold};
    check(cudaFuncSetAttribute(look_through_piece<Parts>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, memory_bytes),
          "look_through_piece");
    check(cudaDeviceSynchronize(),
          "cudaDeviceSynchronize");  // makes the copies visible to all streams
  }

  std::vector<found> run() {
    const owned_file queries(q_.queries.path);
    std::vector<std::unique_ptr<owned_file>> databases;
    std::vector<file_part> parts;
    cut(parts, q_.queries, queries, 0);
    in_turns(parts, 0, [&](const file_part& part, std::size_t b) {
      const rival::half_buffer& buffer = *buffers_[b];
      const std::uint64_t bytes = q_.dimensions * sizeof(float);
      check(cudaMemcpy2DAsync(numbers_.data() + part.first_index * q_.dimensions, bytes,
                              buffer.pinned, part.stride, bytes, part.count, cudaMemcpyHostToDevice,
                              buffer.stream),
            "cudaMemcpy2DAsync");
    });
    constexpr unsigned warps = tile::threads / 32;
    pack_queries<Parts><<<static_cast<unsigned>(ceiling(q_.queries.count, warps)), tile::threads, 0,
                          buffers_[0]->stream>>>(numbers_.data(), q_.dimensions, slices_.data(),
                                                 squares_.data(), to_);
    check(cudaGetLastError(), "launch");

    parts.clear();
    std::uint64_t index = 0;
    for (const vectors_file& d : q_.databases) {
      databases.push_back(std::make_unique<owned_file>(d.path));
      cut(parts, d, *databases.back(), index);
      index += d.count;
    }
    // The first vectors alone: they may be all that is wanted, or near vectors.
    if (!parts.empty()) {
      file_part& first = parts.front();
      file_part begin = first;
      begin.count = std::min<std::uint64_t>(begin.count, tile::side);
      buffers_[0]->wait();
      read(begin, 0);
      look_through(begin, 0);
      buffers_[0]->wait();
      all_matched_ = to_.is_first && *known_matched_[0]->value == to_.queries;
      first.at += begin.count * first.stride, first.first_index += begin.count,
          first.count -= begin.count;
    }
    in_turns(parts, parts.empty() || parts[0].count != 0 ? 0 : 1,
             [&](const file_part& part, std::size_t b) { look_through(part, b); });
    std::vector<found> lists(q_.queries.count * length_);
    check(cudaMemcpy(lists.data(), lists_.data(), lists.size() * sizeof(found),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return lists;
  }

 private:
  static constexpr int memory_bytes = sizeof(scan_memory<Parts>);

  struct pinned_count {
    std::uint64_t* value = nullptr;
    pinned_count() {
      check(cudaHostAlloc(&value, sizeof *value, cudaHostAllocDefault), "cudaHostAlloc");
      *value = 0;
    }
    ~pinned_count() { cudaFreeHost(value); }
    pinned_count(const pinned_count&) = delete;
    pinned_count& operator=(const pinned_count&) = delete;
  };

  void cut(std::vector<file_part>& parts, const vectors_file& file, const owned_file& open,
           std::uint64_t first_index) const {
    std::uint64_t in_part = buffer_bytes_ / file.stride;
    if (in_part > tile::side) in_part = in_part / tile::side * tile::side;
    for (std::uint64_t v = 0; v < file.count; v += in_part)
      parts.push_back({&open, file.offset + v * file.stride, file.stride,
                       std::min(in_part, file.count - v), first_index + v});
  }

  void read(const file_part& part, std::size_t b) const {
    // The bytes after the last vector's numbers may be past the end of the file.
    part.file->read(buffers_[b]->pinned,
                    (part.count - 1) * part.stride + q_.dimensions * sizeof(float), part.at);
  }

  // Threads read parts from number `first` on, in order. They call `use(part, buffer)` for each
  // part, which enqueues the work that frees the buffer.
  template <class Use>
  void in_turns(const std::vector<file_part>& parts, std::size_t first, const Use& use) {
    std::atomic<std::size_t> next{first};
    job::in_threads(threads_, [&](std::size_t t) {
      for (std::size_t turn = 0;; ++turn) {
        const std::size_t b = 2 * t + turn % 2;
        buffers_[b]->wait();
        // All queries have a match in parts that are already taken, so later parts are not needed.
        if (to_.is_first && *known_matched_[b]->value == to_.queries) all_matched_ = true;
        if (all_matched_) break;
        const std::size_t i = next++;
        if (i >= parts.size()) break;
        read(parts[i], b);
        use(parts[i], b);
      }
      buffers_[2 * t]->wait();
      buffers_[2 * t + 1]->wait();
    });
  }

  void look_through(const file_part& part, std::size_t b) const {
    const rival::half_buffer& buffer = *buffers_[b];
    const std::uint64_t bytes = (part.count - 1) * part.stride + q_.dimensions * sizeof(float);
    check(
        cudaMemcpyAsync(buffer.device, buffer.pinned, bytes, cudaMemcpyHostToDevice, buffer.stream),
        "cudaMemcpyAsync");
    const auto blocks = static_cast<unsigned>(ceiling(part.count, tile::side) * tiles_);
    const tile::panel packed{slices_.data(),
                             static_cast<std::uint32_t>(tile::panel::slices_in(q_.dimensions))};
    look_through_piece<Parts><<<blocks, tile::threads, memory_bytes, buffer.stream>>>(
        {buffer.device, part.stride, part.count, part.first_index}, numbers_.data(),
        squares_.data(), q_.dimensions, packed, to_);
    check(cudaGetLastError(), "launch");
    check(cudaMemcpyAsync(known_matched_[b]->value, matched_.data(), sizeof(std::uint64_t),
                          cudaMemcpyDeviceToHost, buffer.stream),
          "cudaMemcpyAsync");
  }

  const question& q_;
  const unsigned threads_;
  const std::uint64_t length_, tiles_;
  std::uint64_t buffer_bytes_ = 0;
  const rival::device_numbers<float> numbers_, squares_;
  const rival::device_numbers<char> slices_;
  const rival::device_numbers<found> lists_;
  const rival::device_numbers<query_state> states_;
  const rival::device_numbers<atomic_word<std::uint64_t>> matched_;
  std::vector<std::unique_ptr<rival::half_buffer>> buffers_;
  std::vector<std::unique_ptr<pinned_count>> known_matched_;  // as of each buffer's last part
  std::atomic<bool> all_matched_{false};
  answers to_{};
};

template <int Parts>
rival_result run_pipeline(const question& q, unsigned threads, std::uint64_t piece_bytes) {
  pipeline<Parts> work(q, threads, piece_bytes);
  const auto start = std::chrono::steady_clock::now();
  std::vector<found> lists = work.run();
  return {std::move(lists),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

}  // namespace

rival_result search_by_pipeline(const question& q, unsigned threads, std::uint64_t piece_bytes) {
  check(q);
  if (q.queries.count == 0) return {{}, 0};
  return q.top == 0 ? run_pipeline<1>(q, threads, piece_bytes)
                    : run_pipeline<2>(q, threads, piece_bytes);
}
#else
rival_result search_by_pipeline(const question&, unsigned, std::uint64_t) {
  throw error(ENOTSUP, "CUDA: this library was built without it");
}
#endif

}  // namespace gpufs::search

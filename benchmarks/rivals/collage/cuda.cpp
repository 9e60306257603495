// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "rivals/collage/rivals.hpp"

#if defined(__CUDACC__)
#include <atomic>
#include <chrono>
#include <memory>

#include "collage/features.hpp"
#include "job/in_threads.hpp"
#include "rivals/collage/host_lists.hpp"
#include "rivals/cuda.hpp"

namespace gpufs::collage {
namespace {

using rival::check;
using rival::device_numbers;
using rival::half_buffer;
using rival::pinned_numbers;

constexpr std::uint32_t threads_of_block = 256;
constexpr std::uint32_t lanes = 32;
constexpr std::uint32_t everyone = ~0u;

// The findings for the blocks of a picture, in device memory.
struct queries {
  std::uint64_t* histograms;  // `histogram_words` for each block
  std::uint32_t* keys;        // `table_count` for each block
};

// One thread block for each block of the picture.
__global__ void __launch_bounds__(threads_of_block)
    make_keys(const std::uint8_t* picture, std::uint32_t columns, const hash_function* functions,
              std::uint32_t bits, queries to) {
  __shared__ std::uint32_t counts[histogram_length], keys[table_count];
  __shared__ alignas(16) std::uint16_t histogram[histogram_length];
  __shared__ std::uint16_t feature[feature_length];
  const std::uint32_t rank = threadIdx.x, warp = rank / lanes, lane = rank % lanes;
  const std::uint64_t b = blockIdx.x, stride = std::uint64_t{columns} * line_bytes;
  const std::uint8_t* const pixels =
      picture + b / columns * tile_side * stride + b % columns * line_bytes;
  for (std::uint32_t i = rank; i < histogram_length; i += threads_of_block) counts[i] = 0;
  if (rank < table_count) keys[rank] = 0;
  __syncthreads();
  for (std::uint32_t i = rank; i < picture_bytes; i += threads_of_block)
    atomicAdd(&counts[bin_of(i % channels, pixels[i / line_bytes * stride + i % line_bytes])], 1);
  __syncthreads();
  if (warp < channels) {
    std::uint32_t before = 0;
    for (std::uint32_t i = warp * bins + lane; i < (warp + 1) * bins; i += lanes) {
      std::uint32_t sum = counts[i];
      for (std::uint32_t step = 1; step < lanes; step *= 2) {
        const std::uint32_t other = __shfl_up_sync(everyone, sum, step);
        if (lane >= step) sum += other;
      }
      histogram[i] = static_cast<std::uint16_t>(before + sum);
      before += __shfl_sync(everyone, sum, lanes - 1);
    }
  }
  __syncthreads();
  if (rank < feature_length) feature[rank] = feature_element(histogram, rank);
  const auto* const words = reinterpret_cast<const std::uint64_t*>(histogram);
  if (rank < histogram_words) to.histograms[b * histogram_words + rank] = words[rank];
  __syncthreads();
  for (std::uint32_t i = rank; i < table_count * bits; i += threads_of_block)
    atomicOr(&keys[i / bits], key_bit(functions[i / bits * bits_max + i % bits], feature)
                                  << i % bits);
  __syncthreads();
  if (rank < table_count) to.keys[b * table_count + rank] = keys[rank];
}

// For each list: where it begins, and its length.
struct lists {
  std::uint32_t* entries;
  std::uint64_t* begins;
  std::uint32_t* lengths;
};

// Makes lists from tables in device memory.
__global__ void __launch_bounds__(threads_of_block)
    make_lists(const char* tables, table_places places, const std::uint32_t* keys, lists to) {
  constexpr std::uint32_t slot_count = 2 * candidates_max;
  __shared__ std::uint32_t slots[slot_count], length;
  const std::uint64_t b = blockIdx.x;
  std::uint32_t* const list = to.entries + b * candidates_max;
  for (std::uint32_t i = threadIdx.x; i < slot_count; i += threads_of_block) slots[i] = 0;
  if (threadIdx.x == 0) length = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < candidates_max; i += threads_of_block) {
    const std::uint32_t table = i / taken_of_bucket;
    const auto* const bounds =
        reinterpret_cast<const std::uint32_t*>(tables + places.offsets(table)) +
        keys[b * table_count + table];
    const std::uint32_t at = bounds[0] + i % taken_of_bucket;
    if (at >= bounds[1]) continue;
    const std::uint32_t tile =
        reinterpret_cast<const std::uint32_t*>(tables + places.numbers(table))[at];
    for (std::uint32_t slot = (tile + 1) * 0x9e37'79b1u % slot_count;;
         slot = (slot + 1) % slot_count) {
      const std::uint32_t seen = atomicCAS(&slots[slot], 0, tile + 1);
      if (seen == 0) list[atomicAdd(&length, 1)] = tile;
      if (seen == 0 || seen == tile + 1) break;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (length == 0) list[length++] = tile_instead(keys[b * table_count], places.tiles);
  to.begins[b] = b * candidates_max;
  to.lengths[b] = length;
}

// `numbers`: the number of the tile for each entry of a list; null: the entry itself.
__global__ void __launch_bounds__(threads_of_block)
    compare(const std::uint64_t* histograms, lists of, const record* records,
            const std::uint32_t* numbers, std::uint32_t* tiles) {
  constexpr std::uint32_t warps = threads_of_block / lanes, words_of_lane = histogram_words / lanes;
  __shared__ std::uint64_t best_of_warps[warps];
  const std::uint64_t b = blockIdx.x;
  const std::uint32_t warp = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  std::uint64_t own[words_of_lane];
#pragma unroll
  for (std::uint32_t k = 0; k < words_of_lane; ++k)
    own[k] = histograms[b * histogram_words + k * lanes + lane];
  std::uint64_t best = no_choice;
  const std::uint32_t* const list = of.entries + of.begins[b];
  for (std::uint32_t i = warp; i < of.lengths[b]; i += warps) {
    const auto* const theirs = reinterpret_cast<const std::uint64_t*>(records[list[i]].histogram);
    std::uint32_t sum = 0;
#pragma unroll
    for (std::uint32_t k = 0; k < words_of_lane; ++k)
      sum += word_distance(own[k], theirs[k * lanes + lane]);
    sum = __reduce_add_sync(everyone, sum);
    best = min(best, choice_of(sum, numbers == nullptr ? list[i] : numbers[list[i]]));
  }
  if (lane == 0) best_of_warps[warp] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const std::uint64_t other : best_of_warps) best = min(best, other);
  tiles[b] = tile_of(best);
}

using clock = std::chrono::steady_clock;
double seconds_since(clock::time_point start) {
  return std::chrono::duration<double>(clock::now() - start).count();
}

// Common to both programs: the picture, and the findings for its blocks.
class device_side {
 public:
  device_side(const dataset& from, const block_picture& picture)
      : picture_(picture), bits_(from.places.bits),
        blocks_(static_cast<std::uint32_t>(picture.blocks())), pixels_(picture.bytes()),
        functions_(from.functions.size()), histograms_(picture.blocks() * histogram_words),
        keys_(picture.blocks() * table_count), entries_(picture.blocks() * candidates_max),
        begins_(picture.blocks()), lengths_(picture.blocks()), tiles_(picture.blocks()) {
    check(cudaMemcpy(functions_.data(), from.functions.data(),
                     from.functions.size() * sizeof(hash_function), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  void start_keys() const {
    check(
        cudaMemcpyAsync(pixels_.data(), picture_.pixels, picture_.bytes(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    make_keys<<<blocks_, threads_of_block>>>(pixels_.data(), picture_.columns, functions_.data(),
                                             bits_, {histograms_.data(), keys_.data()});
    check(cudaGetLastError(), "launch");
  }
  void start_lists(const char* tables, const table_places& places) const {
    make_lists<<<blocks_, threads_of_block>>>(tables, places, keys_.data(), of_blocks());
    check(cudaGetLastError(), "launch");
  }
  std::vector<std::uint32_t> find(const record* records, const std::uint32_t* numbers) const {
    compare<<<blocks_, threads_of_block>>>(histograms_.data(), of_blocks(), records, numbers,
                                           tiles_.data());
    check(cudaGetLastError(), "launch");
    std::vector<std::uint32_t> tiles(blocks_);
    check(cudaMemcpy(tiles.data(), tiles_.data(), tiles.size() * sizeof tiles[0],
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return tiles;
  }
  lists of_blocks() const { return {entries_.data(), begins_.data(), lengths_.data()}; }
  const std::uint32_t* keys() const { return keys_.data(); }

 private:
  const block_picture& picture_;
  const std::uint32_t bits_, blocks_;
  const device_numbers<std::uint8_t> pixels_;
  const device_numbers<hash_function> functions_;
  const device_numbers<std::uint64_t> histograms_;
  const device_numbers<std::uint32_t> keys_, entries_;
  const device_numbers<std::uint64_t> begins_;
  const device_numbers<std::uint32_t> lengths_, tiles_;
};

// Reads bytes of files into device memory. Each thread fills two pinned buffers alternately.
// `fill(at, bytes, buffer)` reads some bytes, which are whole pieces of `piece_bytes`.
class sender {
 public:
  explicit sender(unsigned threads) {
    for (unsigned t = 0; t < 2 * threads; ++t)
      halves_.push_back(std::make_unique<half_buffer>(buffer_bytes));
  }
  template <class Fill>
  void send(char* to, std::uint64_t bytes, std::uint64_t piece_bytes, const Fill& fill) const {
    const std::uint64_t at_once = buffer_bytes / piece_bytes * piece_bytes;
    std::atomic<std::uint64_t> next{0};
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    job::in_threads(halves_.size() / 2, [&](std::size_t t) {
      check(cudaSetDevice(device), "cudaSetDevice");
      for (unsigned turn = 0;; ++turn) {
        const std::uint64_t at = next.fetch_add(at_once);
        if (at >= bytes) break;
        const std::uint64_t here = std::min(at_once, bytes - at);
        const half_buffer& half = *halves_[2 * t + turn % 2];
        // until it is free again
        check(cudaStreamSynchronize(half.stream), "cudaStreamSynchronize");
        fill(at, here, half.pinned);
        check(cudaMemcpyAsync(to + at, half.pinned, here, cudaMemcpyHostToDevice, half.stream),
              "cudaMemcpyAsync");
      }
    });
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  static constexpr std::uint64_t buffer_bytes = 2 << 20;
  std::vector<std::unique_ptr<half_buffer>> halves_;
};

// Numbers tiles in the order of their first request: 0, 1, ... For all threads.
class slot_numbers {
 public:
  explicit slot_numbers(std::uint64_t tiles) : taken_(tiles), slots_(tiles), tiles_(tiles) {}
  void take(std::uint32_t tile) {
    if (taken_[tile].load(std::memory_order_relaxed) ||
        taken_[tile].exchange(true, std::memory_order_relaxed))
      return;
    const std::uint32_t slot = count_.fetch_add(1, std::memory_order_relaxed);
    slots_[tile] = slot;
    tiles_[slot] = tile;
  }
  // Called when all threads have their numbers.
  std::uint32_t count() const { return count_; }
  std::uint32_t slot_of(std::uint32_t tile) const { return slots_[tile]; }
  const std::vector<std::uint32_t>& tiles() const { return tiles_; }

 private:
  std::vector<std::atomic<bool>> taken_;
  std::vector<std::uint32_t> slots_, tiles_;
  std::atomic<std::uint32_t> count_{0};
};

}  // namespace

rival_result collage_by_two_kernels(const dataset& from, const block_picture& picture,
                                    unsigned threads) {
  const std::uint64_t blocks = picture.blocks();
  const mapped_tables tables(from);
  const owned_file records(from.records);
  const device_side device(from, picture);
  const pinned_numbers<std::uint32_t> keys(blocks * table_count), entries(blocks * candidates_max),
      lengths(blocks);
  const pinned_numbers<std::uint64_t> begins(blocks);
  slot_numbers slots(from.places.tiles);
  const sender to_device(threads);
  tables.bring();

  auto start = clock::now();
  device.start_keys();
  check(cudaMemcpy(keys.data(), device.keys(), blocks * table_count * sizeof keys[0],
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  std::vector<std::vector<std::uint32_t>> wanted(blocks);
  const auto share_out = [&](const auto& work) {
    job::in_threads(threads, [&](std::size_t t) {
      for (std::uint64_t b = blocks * t / threads; b < blocks * (t + 1) / threads; ++b) work(b);
    });
  };
  share_out([&](std::uint64_t b) {
    tables.make_list(&keys[b * table_count], wanted[b]);
    for (const std::uint32_t tile : wanted[b]) slots.take(tile);
  });
  std::uint64_t entry_count = 0;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    begins[b] = entry_count;
    lengths[b] = static_cast<std::uint32_t>(wanted[b].size());
    entry_count += wanted[b].size();
  }
  share_out([&](std::uint64_t b) {
    for (std::uint64_t i = 0; i < wanted[b].size(); ++i)
      entries[begins[b] + i] = slots.slot_of(wanted[b][i]);
  });
  const double listed_s = seconds_since(start);
  const device_numbers<record> staged(slots.count());
  const device_numbers<std::uint32_t> numbers(slots.count());
  start = clock::now();
  const auto copy = [](void* to, const void* bytes, std::uint64_t count) {
    check(cudaMemcpyAsync(to, bytes, count, cudaMemcpyHostToDevice), "cudaMemcpyAsync");
  };
  copy(device.of_blocks().entries, entries.data(), entry_count * sizeof entries[0]);
  copy(device.of_blocks().begins, begins.data(), blocks * sizeof begins[0]);
  copy(device.of_blocks().lengths, lengths.data(), blocks * sizeof lengths[0]);
  copy(numbers.data(), slots.tiles().data(), slots.count() * sizeof(std::uint32_t));
  to_device.send(reinterpret_cast<char*>(staged.data()), slots.count() * sizeof(record),
                 sizeof(record), [&](std::uint64_t at, std::uint64_t bytes, char* to) {
                   for (std::uint64_t i = 0; i < bytes; i += sizeof(record))
                     records.read(to + i, sizeof(record),
                                  slots.tiles()[(at + i) / sizeof(record)] * sizeof(record));
                 });
  std::vector<std::uint32_t> tiles = device.find(staged.data(), numbers.data());
  return {std::move(tiles), listed_s + seconds_since(start)};
}

rival_result collage_of_resident(const dataset& from, const block_picture& picture) {
  const owned_file records(from.records), tables(from.tables);
  const device_numbers<record> tiles(from.places.tiles);
  const device_numbers<char> table_bytes(from.places.file_bytes());
  const device_side device(from, picture);
  const sender to_device(8);
  const auto load = [&](const owned_file& file, char* to, std::uint64_t bytes) {
    to_device.send(to, bytes, 1, [&](std::uint64_t at, std::uint64_t count, char* buffer) {
      file.read(buffer, count, at);
    });
  };
  load(records, reinterpret_cast<char*>(tiles.data()), from.places.tiles * sizeof(record));
  load(tables, table_bytes.data(), from.places.file_bytes());
  const auto start = clock::now();
  device.start_keys();
  device.start_lists(table_bytes.data(), from.places);
  std::vector<std::uint32_t> found = device.find(tiles.data(), nullptr);
  return {std::move(found), seconds_since(start)};
}

}  // namespace gpufs::collage
#else
#include <cerrno>

namespace gpufs::collage {

rival_result collage_by_two_kernels(const dataset&, const block_picture&, unsigned) {
  throw error(ENOTSUP, "CUDA: this library was built without it");
}
rival_result collage_of_resident(const dataset&, const block_picture&) {
  throw error(ENOTSUP, "CUDA: this library was built without it");
}

}  // namespace gpufs::collage
#endif

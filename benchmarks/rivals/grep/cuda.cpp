// Compiled by nvcc if there is one, otherwise by the host compiler.
#include <cerrno>

#include "gpufs/error.hpp"
#include "rivals/grep/rivals.hpp"

#if defined(__CUDACC__)
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "job/in_threads.hpp"
#include "rivals/cuda.hpp"
#include "rivals/grep/host.hpp"
#include "rivals/grep/text.hpp"
#endif

namespace gpufs::grep {

#if defined(__CUDACC__)
namespace {

using rival::check;

constexpr std::uint32_t threads_of_block = 256;
constexpr std::uint32_t lanes = 32;
constexpr std::uint32_t everyone = ~0u;
constexpr std::uint32_t tile_bytes = 8192;
constexpr std::uint32_t padding_bytes =
    112;  // zeros after a tile's text, which are no word characters
constexpr std::uint32_t memory_bytes = lead_bytes + tile_bytes + behind_bytes + padding_bytes;
constexpr std::uint32_t groups_max = memory_bytes / lanes;
constexpr std::uint32_t slots =
    2048;  // a tile of source text has some hundred words of a dictionary
constexpr std::uint32_t probes_max = 64;
static_assert(memory_bytes % lanes == 0,
              "all text is in whole groups of as many bytes as a warp has lanes");
static_assert(slots % threads_of_block == 0, "all threads look through as many slots");

// A part of a text in a chunk, for one block.
struct tile {
  std::uint32_t begin;    // offset in the chunk; a multiple of 16
  std::uint32_t bytes;    // searched for matches that begin in this many bytes
  std::uint32_t end;      // where the text ends, including the bytes after the tile
  std::uint32_t segment;  // number of the text in the chunk
};

struct tile_counts {
  std::uint32_t segment, count, begin;
};
struct tile_place {
  std::uint32_t segment, word, at;  // offset in the chunk
};
// The number of entries in each list, including those for which there was no room.
struct used_counts {
  std::uint32_t counts, sections, places;
};
// Lists in host memory: only findings cross the bus.
struct answers {
  used_counts* used;  // in the GPU's memory
  word_count* counts;
  tile_counts* sections;
  tile_place* places;
  used_counts room;

  __device__ void add_section(std::uint32_t segment, std::uint32_t count,
                              std::uint32_t begin) const {
    const std::uint32_t at = atomicAdd(&used->sections, 1);
    if (at < room.sections) sections[at] = {segment, count, begin};
  }
  __device__ void add_count(std::uint32_t at, word_count c) const {
    if (at < room.counts) counts[at] = c;
  }
  __device__ void add_place(const tile_place& p) const {
    const std::uint32_t at = atomicAdd(&used->places, 1);
    if (at < room.places) places[at] = p;
  }
};

struct block_memory {
  alignas(16) std::uint64_t text[memory_bytes / 8];
  std::uint32_t masks[groups_max];  // bit i of number k: byte 32 k + i is a word character
  std::uint16_t starts[tile_bytes];
  std::uint32_t start_count;
  std::uint32_t words[slots];  // word + 1; 0: free
  std::uint32_t counts[slots];
  std::uint32_t used, packed, first;
};

__device__ bool is_word_byte(std::uint32_t c) {
  return (c | 0x20) - 'a' < 26 || c - '0' < 10 || c == '_';
}

// Loads the bytes before a tile, its text, and the bytes after it.
__device__ std::uint32_t load_text(block_memory& memory, const char* chunk, const tile& t) {
  const std::uint32_t begin = t.begin - lead_bytes, wanted = lead_bytes + t.bytes + behind_bytes;
  const std::uint32_t bytes = wanted < t.end - begin ? wanted : t.end - begin;
  const auto* const from = reinterpret_cast<const uint4*>(chunk + begin);
  auto* const to = reinterpret_cast<uint4*>(memory.text);
  for (std::uint32_t i = threadIdx.x; i * sizeof(uint4) < bytes; i += threads_of_block)
    to[i] = from[i];
  __syncthreads();
  if (threadIdx.x < padding_bytes) reinterpret_cast<char*>(memory.text)[bytes + threadIdx.x] = 0;
  __syncthreads();
  return bytes;
}

// In each step a warp classifies one character a lane.
__device__ void mark_word_characters(block_memory& memory, std::uint32_t bytes) {
  const std::uint32_t lane = threadIdx.x % lanes;
  const auto* const text = reinterpret_cast<const std::uint8_t*>(memory.text);
  for (std::uint32_t group = threadIdx.x / lanes; group < bytes / lanes + 2;
       group += threads_of_block / lanes) {
    const std::uint32_t mask = __ballot_sync(everyone, is_word_byte(text[group * lanes + lane]));
    if (lane == 0) memory.masks[group] = mask;
  }
}

// Lists where words may begin, so that all threads have the same number of lookups.
__device__ void list_starts(block_memory& memory, const keys_ref& keys, std::uint32_t bytes) {
  const std::uint32_t lane = threadIdx.x % lanes, end = lead_bytes + bytes;
  for (std::uint32_t first = 0; first * lanes < end; first += threads_of_block) {
    const std::uint32_t group = first + threadIdx.x, at = group * lanes;
    std::uint32_t starts = 0;
    if (at < end) {
      const std::uint32_t mask = memory.masks[group], next = memory.masks[group + 1];
      const std::uint32_t boundary =
          ~(mask << 1 | (group == 0 ? 0 : memory.masks[group - 1] >> 31));
      starts = mask & boundary;
      for (std::uint32_t i = 1; i < keys.shortest_run; ++i)
        starts &= __funnelshift_r(mask, next, i);
      if (keys.begins_non_word != 0) starts |= ~mask & boundary;
      if (group == 0) starts &= ~0u << lead_bytes;
      if (at + lanes > end) starts &= ~0u >> (at + lanes - end);
    }
    const auto count = static_cast<std::uint32_t>(__popc(starts));
    std::uint32_t sum = count;
    for (std::uint32_t step = 1; step < lanes; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(everyone, sum, step);
      if (lane >= step) sum += other;
    }
    std::uint32_t place = 0;
    if (lane == lanes - 1 && sum != 0) place = atomicAdd(&memory.start_count, sum);
    place = __shfl_sync(everyone, place, lanes - 1) + sum - count;
    for (; starts != 0; starts &= starts - 1)
      memory.starts[place++] = static_cast<std::uint16_t>(
          at + static_cast<std::uint32_t>(__ffs(static_cast<int>(starts))) - 1);
  }
}

// Returns the first place from `at` on that has no word character.
__device__ std::uint32_t run_end(const block_memory& memory, std::uint32_t at) {
  std::uint32_t group = at / lanes;
  std::uint32_t others = ~memory.masks[group] & ~0u << at % lanes;
  while (others == 0) others = ~memory.masks[++group];
  return group * lanes + static_cast<std::uint32_t>(__ffs(static_cast<int>(others))) - 1;
}

__device__ void count_word(block_memory& memory, std::uint32_t word, std::uint32_t segment,
                           const answers& to) {
  std::uint32_t slot = (word * 0x9e37'79b1u) % slots;
  for (std::uint32_t probe = 0; probe < probes_max; ++probe, slot = (slot + 1) % slots) {
    const std::uint32_t seen = atomicCAS(&memory.words[slot], 0, word + 1);
    if (seen == 0) atomicAdd(&memory.used, 1);
    if (seen == 0 || seen == word + 1) {
      atomicAdd(&memory.counts[slot], 1);
      return;
    }
  }
  const std::uint32_t at = atomicAdd(&to.used->counts, 1);
  to.add_count(at, {word, 1});
  to.add_section(segment, 1, at);
}

__device__ void look_up(block_memory& memory, const keys_ref& keys, std::uint32_t at,
                        std::uint32_t bytes, const tile& t, const answers& to) {
  for (std::uint32_t end = run_end(memory, at + 1); end <= bytes; end = run_end(memory, end + 1)) {
    const std::uint32_t length = end - at;
    if (length > keys.longest) return;
    const std::uint64_t first = keep_bytes(eight_bytes(memory.text, at), length);
    const std::uint64_t last = length > 8 ? eight_bytes(memory.text, end - 8) : 0;
    const std::uint64_t hash = hash_key(first, last, length);
    if (!keys.may_have(hash)) return;
    const key_entry* const key = keys.find(
        hash, first, last, length,
        [&](const std::uint64_t* text) { return equal_text(memory.text, at, text, length); });
    if (key == nullptr) return;
    if (key->overlaps != 0) to.add_place({t.segment, key->word, t.begin + at - lead_bytes});
    else if (key->word != no_word) count_word(memory, key->word, t.segment, to);
    if (key->continues == 0) return;
  }
}

// Moves the counts of a block to the list.
__device__ void hand_over(block_memory& memory, std::uint32_t segment, const answers& to) {
  const std::uint32_t used = memory.used, lane = threadIdx.x % lanes;
  if (used == 0) return;
  if (threadIdx.x == 0) {
    memory.first = atomicAdd(&to.used->counts, used);
    to.add_section(segment, used, memory.first);
  }
  __syncthreads();
  for (std::uint32_t slot = threadIdx.x; slot < slots; slot += threads_of_block) {
    const std::uint32_t word = memory.words[slot], filled = __ballot_sync(everyone, word != 0);
    std::uint32_t place = 0;
    if (lane == 0 && filled != 0)
      place = atomicAdd(&memory.packed, static_cast<std::uint32_t>(__popc(filled)));
    place = memory.first + __shfl_sync(everyone, place, 0) +
            static_cast<std::uint32_t>(__popc(filled & ((1u << lane) - 1)));
    if (word != 0) to.add_count(place, {word - 1, memory.counts[slot]});
  }
}

// One block for each tile.
__global__ void __launch_bounds__(threads_of_block)
    search_tiles(const char* chunk, const tile* tiles, const keys_ref keys, const answers to) {
  extern __shared__ uint4 scratch[];
  auto& memory = *reinterpret_cast<block_memory*>(scratch);
  const tile t = tiles[blockIdx.x];
  for (std::uint32_t slot = threadIdx.x; slot < slots; slot += threads_of_block)
    memory.words[slot] = memory.counts[slot] = 0;
  if (threadIdx.x == 0) memory.start_count = memory.used = memory.packed = 0;
  const std::uint32_t bytes = load_text(memory, chunk, t);
  mark_word_characters(memory, bytes);
  __syncthreads();
  list_starts(memory, keys, t.bytes);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < memory.start_count; i += threads_of_block)
    look_up(memory, keys, memory.starts[i], bytes, t, to);
  __syncthreads();
  hand_over(memory, t.segment, to);
}

// The dictionary in GPU memory.
class device_keys {
 public:
  explicit device_keys(const key_table& from)
      : from_(from), entries_(from.entries().size()), filter_(from.filter().size()),
        texts_(from.dictionary().texts.size()) {
    copy(entries_, from.entries());
    copy(filter_, from.filter());
    copy(texts_, from.dictionary().texts);
    check(cudaDeviceSynchronize(),
          "cudaDeviceSynchronize");  // makes the copies visible to all streams
  }
  keys_ref ref() const {
    keys_ref keys = from_.ref();
    keys.entries = entries_.data(), keys.filter = filter_.data(), keys.texts = texts_.data();
    return keys;
  }

 private:
  template <class T>
  static void copy(const rival::device_numbers<T>& to, const std::vector<T>& from) {
    check(cudaMemcpy(to.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }

  const key_table& from_;
  const rival::device_numbers<key_entry> entries_;
  const rival::device_numbers<std::uint32_t> filter_;
  const rival::device_numbers<std::uint64_t> texts_;
};

constexpr std::uint64_t round_up(std::uint64_t number, std::uint64_t to) {
  return (number + to - 1) / to * to;
}

// Half of a thread's double buffer: texts of files, one after another, then the tiles. Also their
// findings.
class chunk {
 public:
  // Size of a part that fits into an empty chunk.
  static std::uint64_t part_bytes_for(std::uint64_t chunk_bytes) {
    return chunk_bytes / 8 * 7 / 16 * 16;
  }

  explicit chunk(std::uint64_t bytes)
      : bytes_(bytes), buffer_(bytes + 64),
        room_{static_cast<std::uint32_t>(bytes / 8), static_cast<std::uint32_t>(bytes / 32),
              static_cast<std::uint32_t>(bytes / 32)},
        counts_(room_.counts), sections_(room_.sections), places_(room_.places), used_(1),
        known_(1) {}

  bool has_room(std::uint64_t part_bytes) const {
    const std::uint64_t text = lead_bytes + part_bytes + behind_bytes + 16;
    const std::uint64_t tiles = tiles_.size() + part_bytes / tile_bytes + 1;
    return filled_ + text + tiles * sizeof(tile) <= bytes_;
  }
  bool is_empty() const { return tiles_.empty(); }

  // Reads a part into the chunk, unless it has a NUL.
  void add(const file_part& part, const file_item& item, file_states& states, findings& to) {
    if (states.first_nul(part.file) < part.begin) return;
    const part_file file(item.path.c_str());
    if (file.error() != 0) return states.fail(part.file, file.error());
    const std::uint64_t wanted = part.end - part.begin;
    char* const memory = buffer_.pinned + filled_;
    const std::int64_t got = file.read(memory, part.begin, wanted);
    if (got < 0) return states.fail(part.file, static_cast<int>(-got));
    const auto bytes =
        static_cast<std::uint32_t>(std::min(wanted, static_cast<std::uint64_t>(got)));
    to.bytes += bytes;
    if (const void* nul = std::memchr(memory + lead_bytes, 0, bytes)) {
      const auto at =
          static_cast<std::uint64_t>(static_cast<const char*>(nul) - (memory + lead_bytes));
      return states.note_nul(part.file, part.begin + at);
    }
    if (bytes == 0) return;
    const std::uint32_t begin = filled_ + lead_bytes, end = begin + static_cast<std::uint32_t>(got);
    const auto number = static_cast<std::uint32_t>(segments_.size());
    segments_.push_back({part.file, part.begin, begin, bytes, end});
    for (std::uint32_t at = 0; at < bytes; at += tile_bytes)
      tiles_.push_back({begin + at, std::min(tile_bytes, bytes - at), end, number});
    filled_ = static_cast<std::uint32_t>(round_up(end, 16));
  }

  // Starts the search.
  void search(const keys_ref& keys) {
    std::memcpy(buffer_.pinned + filled_, tiles_.data(), tiles_.size() * sizeof(tile));
    const cudaStream_t stream = buffer_.stream;
    check(cudaMemsetAsync(used_.data(), 0, sizeof(used_counts), stream), "cudaMemsetAsync");
    check(cudaMemcpyAsync(buffer_.device, buffer_.pinned, filled_ + tiles_.size() * sizeof(tile),
                          cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
    search_tiles<<<static_cast<unsigned>(tiles_.size()), threads_of_block, sizeof(block_memory),
                   stream>>>(
        buffer_.device, reinterpret_cast<const tile*>(buffer_.device + filled_), keys,
        {used_.data(), counts_.data(), sections_.data(), places_.data(), room_});
    check(cudaGetLastError(), "launch");
    check(cudaMemcpyAsync(known_.data(), used_.data(), sizeof(used_counts), cudaMemcpyDeviceToHost,
                          stream),
          "cudaMemcpyAsync");
  }

  // Waits for the search, if there is one, and takes its findings. Afterwards the chunk is empty.
  void collect(text_searcher& on_host, findings& to) {
    buffer_.wait();
    const used_counts used = is_empty() ? used_counts{} : known_[0];
    if (used.counts > room_.counts || used.sections > room_.sections ||
        used.places > room_.places) {
      search_on_host(on_host);
    } else {
      const std::size_t first = to.counts.size();
      to.counts.insert(to.counts.end(), counts_.data(), counts_.data() + used.counts);
      for (std::uint32_t i = 0; i < used.sections; ++i) {
        const tile_counts& s = sections_[i];
        to.sections.push_back({segments_[s.segment].file, s.count, first + s.begin});
      }
      for (std::uint32_t i = 0; i < used.places; ++i) {
        const segment& s = segments_[places_[i].segment];
        to.places.push_back({s.file, places_[i].word, s.at + (places_[i].at - s.begin)});
      }
    }
    tiles_.clear(), segments_.clear();
    filled_ = 0;
  }

 private:
  struct segment {
    std::uint32_t file;
    std::uint64_t at;  // offset in the file
    std::uint32_t begin, bytes, end;
  };

  void search_on_host(text_searcher& on_host) const {
    for (const segment& s : segments_) {
      const char* const memory = buffer_.pinned + s.begin - lead_bytes;
      on_host.search({memory, s.end - s.begin + lead_bytes, s.file, s.at}, s.bytes);
      on_host.end_section(s.file);
    }
  }

  const std::uint64_t bytes_;
  const rival::half_buffer buffer_;
  const used_counts room_;
  const rival::pinned_numbers<word_count> counts_;
  const rival::pinned_numbers<tile_counts> sections_;
  const rival::pinned_numbers<tile_place> places_;
  const rival::device_numbers<used_counts> used_;
  const rival::pinned_numbers<used_counts> known_;
  std::uint32_t filled_ = 0;
  std::vector<segment> segments_;
  std::vector<tile> tiles_;
};

// Findings of one thread.
struct worker {
  chunk halves[2];
  findings found;
  text_searcher on_host;
  worker(std::uint64_t chunk_bytes, const key_table& keys)
      : halves{chunk(chunk_bytes), chunk(chunk_bytes)}, on_host(keys, found) {}

  // Takes parts until there are none left.
  void work(const std::vector<file_part>& parts, std::atomic<std::size_t>& next,
            const std::vector<file_item>& files, file_states& states, const keys_ref& keys) {
    std::size_t i = next++;
    for (std::size_t turn = 0; i < parts.size(); ++turn) {
      chunk& half = halves[turn % 2];
      half.collect(on_host, found);
      for (; i < parts.size() && half.has_room(parts[i].end - parts[i].begin); i = next++)
        half.add(parts[i], files[parts[i].file], states, found);
      if (!half.is_empty()) half.search(keys);
    }
    for (chunk& half : halves) half.collect(on_host, found);
  }
};

}  // namespace

rival_result search_by_pipeline(const dictionary& d, const std::vector<file_item>& files,
                                unsigned threads, std::uint64_t chunk_bytes) {
  check_chunk(chunk_bytes);
  const key_table keys(d.flat());
  const device_keys on_device(keys);
  file_states states(files.size());
  std::vector<std::unique_ptr<worker>> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.push_back(std::make_unique<worker>(chunk_bytes, keys));
  check(cudaFuncSetAttribute(search_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(block_memory)),
        "search_tiles");
  const auto start = std::chrono::steady_clock::now();
  if (!d.words().empty()) {
    const std::vector<file_part> parts = cut_files(files, chunk::part_bytes_for(chunk_bytes));
    std::atomic<std::size_t> next{0};
    job::in_threads(threads, [&](std::size_t t) {
      take_own_descriptors();
      workers[t]->work(parts, next, files, states, on_device.ref());
    });
  }
  std::vector<findings> found;
  for (const std::unique_ptr<worker>& w : workers) found.push_back(std::move(w->found));
  result all = complete(d, keys, files, states, std::move(found), threads, chunk_bytes);
  return {std::move(all),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}
#else
rival_result search_by_pipeline(const dictionary&, const std::vector<file_item>&, unsigned,
                                std::uint64_t) {
  throw error(ENOTSUP, "CUDA: this library was built without it");
}
#endif

}  // namespace gpufs::grep

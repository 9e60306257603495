// The kernels of collage.hpp.
#pragma once

#include "collage/features.hpp"
#include "collage/plan.hpp"
#include "job/job.hpp"

namespace gpufs::collage {

// The files of a job, in this order.
enum role : std::uint32_t { records, tables };

// A set of numbers. The threads of a block insert into it at the same time.
class short_list {
 public:
  // Called by all members. A barrier must follow before the first put().
  GPUFS_HD void clear(const block_group& g) {
    for (std::uint32_t i = g.rank(); i < slots; i += g.size()) taken_[i].store_relaxed(0);
    if (g.is_leader()) count_.store_relaxed(0);
  }
  // Called by one thread. Relaxed: a barrier is between all put() calls and the reads.
  GPUFS_HD void put(std::uint32_t tile) {
    const std::uint32_t key = tile + 1;  // 0: free
    for (std::uint32_t slot = key * 0x9e37'79b1u >> (32 - slots_bits);; slot = (slot + 1) % slots) {
      std::uint32_t seen = taken_[slot].load_relaxed();
      if (seen == 0 && taken_[slot].compare_exchange_relaxed(seen, key)) {
        tiles_[count_.fetch_add_relaxed(1)] = tile;
        return;
      }
      if (seen == key) return;
    }
  }
  GPUFS_HD std::uint32_t size() const { return count_.load_relaxed(); }
  GPUFS_HD std::uint32_t operator[](std::uint32_t i) const { return tiles_[i]; }

 private:
  static constexpr std::uint32_t slots_bits = 10, slots = 1u << slots_bits;
  static_assert(slots >= 2 * candidates_max,
                "a search soon comes to a free slot, or to the number itself");
  atomic_word<std::uint32_t> taken_[slots];
  std::uint32_t tiles_[candidates_max];
  atomic_word<std::uint32_t> count_;
};

// What a thread block knows of its current block of the picture.
struct alignas(16) block_memory {
  vector16 histogram[histogram_vectors];
  std::uint32_t found[table_count][taken_of_bucket];
  std::uint32_t bounds[table_count][2];
  std::uint32_t found_count[table_count];
  atomic_word<std::uint32_t> keys[table_count];
  atomic_word<std::uint32_t> counts[histogram_length];
  std::uint16_t feature[feature_length];
  std::int32_t descriptors[2];  // by role
  short_list list;
};

// A team is a part of a warp that compares a histogram together, so a warp compares several at a
// time.
inline constexpr std::uint32_t warp_size = platform::is_gpu ? 32 : 1;
inline constexpr std::uint32_t team_size = platform::is_gpu ? 8 : 1, teams = warp_size / team_size;

// Collective of a warp. Returns the sum of the values of members with smaller ranks.
GPUFS_HD inline std::uint32_t sum_before(const warp_group& g, std::uint32_t value) {
  std::uint32_t sum = value;
  GPUFS_UNROLL
  for (std::uint32_t step = 1; step < warp_size; step *= 2) {
    const std::uint32_t other = g.from(sum, g.rank() < step ? g.rank() : g.rank() - step);
    if (g.rank() >= step) sum += other;
  }
  return sum - value;
}

// Collective of a team. Returns the distance of two histograms to all its members; `rank` is the
// member's rank in the team. Several loads of the file's bytes are in flight.
GPUFS_HD inline std::uint32_t distance_by_team(const warp_group& g, std::uint32_t rank,
                                               const vector16* a, const vector16* b) {
  constexpr std::uint32_t at_once = 6;
  static_assert(histogram_vectors % (at_once * 8) == 0,
                "a team of eight and one of a single member have no rest");
  std::uint32_t sum = 0;
  for (std::uint32_t first = 0; first < histogram_vectors; first += at_once * team_size) {
    const std::uint32_t i = first + rank;
    vector16 of_a[at_once];
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < at_once; ++k) of_a[k] = a[i + k * team_size];
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < at_once; ++k) {
      const vector16 x = of_a[k], y = b[i + k * team_size];
      sum += pair_distance(x.x, y.x) + pair_distance(x.y, y.y) + pair_distance(x.z, y.z) +
             pair_distance(x.w, y.w);
    }
  }
  return sum_of(g, sum, team_size);
}

// Returns where a byte of a block's picture is in the whole picture, or in the collage.
GPUFS_HD inline std::uint64_t place_of(std::uint32_t columns, std::uint32_t block,
                                       std::uint32_t byte) {
  const std::uint64_t line = std::uint64_t{block / columns} * tile_side + byte / line_bytes;
  return (line * columns + block % columns) * line_bytes + byte % line_bytes;
}

// Stores the brightness of each block of a picture into the array of their order.
struct weigh_blocks : tuned_shape {
  plan of;
  char* memory;

  GPUFS_HD void operator()(const mount_ref&) const {
    const block_group g = this_block();
    job::by_turns(of.blocks(), 1, [&](std::uint64_t b, std::uint64_t) {
      std::uint32_t sum = 0;
      for (std::uint32_t i = g.rank(); i < picture_bytes; i += g.size())
        sum += static_cast<std::uint8_t>(
            memory[of.pixels + place_of(of.columns, static_cast<std::uint32_t>(b), i)]);
      const std::uint64_t all = g.sum(sum);
      if (g.is_leader())
        reinterpret_cast<std::uint32_t*>(memory + of.order)[b] = static_cast<std::uint32_t>(all);
    });
  }
};

// For some block rows of a picture: finds each block's keys, the tiles of the buckets with these
// keys, the nearest of them, and copies its picture. Blocks have whole warps; `block_memory` is
// their scratch memory.
struct find_tiles {
  // 64 registers, as tuned_shape, but blocks of up to four times as many threads, for small
  // pictures.
  static constexpr int block_threads_max = 1024, blocks_per_multiprocessor = 1;
  plan of;
  char* memory_of_picture;
  const char *records, *tables;  // paths
  std::uint64_t first, end;      // blocks, in their order
  std::uint64_t turns;           // where the launch counts the blocks that were taken
  job::failure failed;

  find_tiles(const job::job& work, const plan& p, char* memory, std::uint32_t first_row)
      : of(p), memory_of_picture(memory), records(work.path(role::records)),
        tables(work.path(role::tables)), first(std::uint64_t{first_row} * p.columns),
        end(first + p.band_blocks(first_row)), turns(p.turns_of(first_row)), failed(work.failed()) {
  }

  // Descriptors of the files.
  struct open_files {
    std::int32_t records, tables;
  };

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    auto& memory = *reinterpret_cast<block_memory*>(block_group::scratch());
    // Two warps open at the same time, because each waits for the host.
    for (std::uint32_t file = g.warp_rank(); file < 2; file += g.warp_count())
      memory.descriptors[file] = job::open_to_read(
          this_warp(), fs, file == role::records ? records : tables, file, failed);
    g.sync();
    const open_files files{memory.descriptors[role::records], memory.descriptors[role::tables]};
    const bool open = g.all(!failed.told()) && files.records >= 0 && files.tables >= 0;
    for (std::uint64_t next = first + g.grid_rank(); next < end && open;) {
      const auto b =
          of.ordered ? array<std::uint32_t>(of.order)[next] : static_cast<std::uint32_t>(next);
      // A thread block takes the next block when it is ready. So the blocks in progress are
      // neighbours.
      const std::uint64_t taken =
          g.is_leader() ? array<atomic_word<std::uint64_t>>(turns)->fetch_add_relaxed(1) : 0;
      make_keys(g, memory, b);
      make_list(g, fs, files, memory);
      const std::uint64_t best = nearest(g, fs, files, memory);
      if (g.is_leader()) {
        array<std::uint32_t>(of.tiles)[b] = tile_of(best);
        array<std::uint32_t>(of.distances)[b] = distance_of(best);
        array<atomic_word<std::uint64_t>>(of.candidates)->add_relaxed(memory.list.size());
      }
      if (best != no_choice) copy_tile(g, fs, files, tile_of(best), b);
      // All members meet here, before the next block overwrites what the leader reads. After an
      // error with a file each call might wait for its timeout.
      next = g.broadcast(failed.told() ? end : first + g.grid_size() + taken);
    }
    // Files that are only read.
    if (files.records >= 0) (void)gclose(g, fs, files.records);
    if (files.tables >= 0) (void)gclose(g, fs, files.tables);
  }

 private:
  // A part of the picture's memory.
  template <class T>
  GPUFS_HD T* array(std::uint64_t place) const {
    return reinterpret_cast<T*>(platform::assume_global(memory_of_picture + place));
  }

  // The four steps are out of line, so that each has all registers.

  // Computes the block's histogram, feature and keys. Also empties the list.
  GPUFS_HD GPUFS_OUT_OF_LINE void make_keys(const block_group& g, block_memory& memory,
                                            std::uint32_t b) const {
    const warp_group warp = this_warp();
    for (std::uint32_t i = g.rank(); i < histogram_length; i += g.size())
      memory.counts[i].store_relaxed(0);
    for (std::uint32_t i = g.rank(); i < table_count; i += g.size())
      memory.keys[i].store_relaxed(0);
    memory.list.clear(g);
    g.sync();
    // Relaxed, as for the bits below: barriers separate all additions from the reads.
    constexpr std::uint32_t word_bytes = sizeof(std::uint32_t);
    for (std::uint32_t i = g.rank() * word_bytes; i < picture_bytes; i += g.size() * word_bytes) {
      const std::uint32_t word = *array<std::uint32_t>(of.pixels + place_of(of.columns, b, i));
      GPUFS_UNROLL
      for (std::uint32_t k = 0; k < word_bytes; ++k) {
        const auto value = static_cast<std::uint8_t>(word >> 8 * k);
        (void)memory.counts[bin_of((i + k) % channels, value)].fetch_add_relaxed(1);
      }
    }
    g.sync();
    auto* const histogram = reinterpret_cast<std::uint16_t*>(memory.histogram);
    for (std::uint32_t c = g.warp_rank(); c < channels; c += g.warp_count()) {
      const std::uint32_t own = bins / warp_size, first = c * bins + warp.rank() * own;
      std::uint32_t sum = 0;
      for (std::uint32_t i = first; i < first + own; ++i) sum += memory.counts[i].load_relaxed();
      sum = sum_before(warp, sum);
      for (std::uint32_t i = first; i < first + own; ++i) {
        sum += memory.counts[i].load_relaxed();
        histogram[i] = static_cast<std::uint16_t>(sum);
      }
    }
    g.sync();
    for (std::uint32_t i = g.rank(); i < feature_length; i += g.size())
      memory.feature[i] = feature_element(histogram, i);
    g.sync();
    const auto* const functions = array<const hash_function>(of.functions);
    for (std::uint32_t i = g.rank(); i < table_count * of.places.bits; i += g.size()) {
      const std::uint32_t table = i / of.places.bits, bit = i % of.places.bits;
      const std::uint32_t value = key_bit(functions[table * bits_max + bit], memory.feature);
      (void)memory.keys[table].fetch_add_relaxed(value << bit);
    }
    g.sync();
  }

  // Lists the tiles in the buckets with the block's keys, without duplicates. A bucket's tiles can
  // be read only after its bounds.
  GPUFS_HD GPUFS_OUT_OF_LINE void make_list(const block_group& g, const mount_ref& fs,
                                            const open_files& files, block_memory& memory) const {
    const warp_group warp = this_warp();
    const std::uint32_t warps = g.warp_count();
    // Adjacent tables go to different warps: a warp loads absent pages one after another.
    for (std::uint32_t before = 0; before < table_count; before += warp_size / readers * warps) {
      const std::uint32_t own = before + warp.rank() / readers * warps + g.warp_rank();
      const bool mine = own < table_count;
      const std::uint32_t table = mine ? own : 0;
      std::uint32_t* const bounds = memory.bounds[table];
      const std::uint64_t bytes = mine ? sizeof memory.bounds[0] : 0;
      const std::uint64_t at =
          of.places.offsets(table) + memory.keys[table].load_relaxed() * sizeof(std::uint32_t);
      bool good = read(warp, fs, files.tables, bounds, bytes, at) && mine;
      if (good && (bounds[0] > bounds[1] || bounds[1] > of.places.tiles)) {
        failed.tell(role::tables, -EINVAL);
        good = false;
      }
      const std::uint32_t in_bucket = good ? bounds[1] - bounds[0] : 0;
      const std::uint32_t taken = in_bucket < taken_of_bucket ? in_bucket : taken_of_bucket;
      const std::uint64_t from =
          of.places.numbers(table) + (good ? bounds[0] : 0) * sizeof(std::uint32_t);
      good = read(warp, fs, files.tables, memory.found[table], taken * sizeof(std::uint32_t), from);
      if (mine) memory.found_count[table] = good ? taken : 0;
    }
    g.sync();
    for (std::uint32_t i = g.rank(); i < candidates_max; i += g.size()) {
      const std::uint32_t table = i / taken_of_bucket, k = i % taken_of_bucket;
      if (k >= memory.found_count[table]) continue;
      if (memory.found[table][k] < of.places.tiles) memory.list.put(memory.found[table][k]);
      else failed.tell(role::tables, -EINVAL);
    }
    g.sync();
    if (memory.list.size() != 0) return;
    g.sync();  // all members have seen that it is empty
    if (g.is_leader())
      memory.list.put(tile_instead(memory.keys[0].load_relaxed(), of.places.tiles));
    g.sync();
  }

  // Members of a warp that read a part of a file together.
  static constexpr std::uint32_t readers = platform::is_gpu ? 2 : 1;

  // Each pair of adjacent members reads a part of a file. Returns whether it is complete. If a page
  // may end within the part, one member reads what is before and the other reads the rest, because
  // gread_each takes longer for a part in two pages.
  GPUFS_HD bool read(const warp_group& warp, const mount_ref& fs, std::int32_t fd,
                     std::uint32_t* to, std::uint64_t bytes, std::uint64_t at) const {
    const std::uint64_t in_page = page_bytes_min - at % page_bytes_min;
    const std::uint64_t cut = readers == 1 || bytes < in_page ? bytes : in_page;
    const bool is_first = warp.rank() % readers == 0;
    const std::uint64_t begin = is_first ? 0 : cut, own = is_first ? cut : bytes - cut;
    const std::int64_t got = gread_each(warp, fs, fd, to + begin / sizeof *to, own,
                                        static_cast<std::int64_t>(at + begin));
    const bool good = got == static_cast<std::int64_t>(own);
    if (!good) failed.tell(role::tables, got < 0 ? got : 0);
    const std::uint32_t other = warp.from(good ? 1u : 0u, warp.rank() ^ (readers - 1));
    warp.sync();  // both members see all of it
    return good && other != 0;
  }

  // Returns the best choice of the list. The warps share its tiles. A warp maps as many records at
  // a time as allowed, one for each member.
  GPUFS_HD GPUFS_OUT_OF_LINE std::uint64_t nearest(const block_group& g, const mount_ref& fs,
                                                   const open_files& files,
                                                   const block_memory& memory) const {
    const warp_group warp = this_warp();
    const std::uint32_t most = warp_size < of.maps_of_warp ? warp_size : of.maps_of_warp,
                        size = memory.list.size();
    // As few rounds as possible, with the same number of tiles for all warps.
    const auto parts = [](std::uint32_t n, std::uint32_t part) { return (n + part - 1) / part; };
    const std::uint32_t even =
        parts(parts(size, parts(size, most * g.warp_count()) * g.warp_count()), teams) * teams;
    const std::uint32_t batch = even < most ? even : most;
    std::uint64_t best = no_choice;
    for (std::uint32_t begin = g.warp_rank() * batch; begin < size;
         begin += g.warp_count() * batch) {
      const std::uint32_t left = size - begin, count = left < batch ? left : batch;
      const bool mine = warp.rank() < count;
      const std::uint32_t tile = mine ? memory.list[begin + warp.rank()] : 0;
      const std::uint64_t at = tile * std::uint64_t{sizeof(record)} + histogram_at;
      const mapping m = gmmap_each(warp, fs, files.records, static_cast<std::int64_t>(at),
                                   mine ? histogram_bytes : 0);
      const bool good = m.bytes == static_cast<std::int64_t>(histogram_bytes);
      if (mine && !good) failed.tell(role::records, m.bytes < 0 ? m.bytes : 0);
      std::uint32_t made = 0;
      for (std::uint32_t turn = 0; turn < count; turn += teams) {
        const std::uint32_t i = turn + warp.rank() / team_size, member = i < count ? i : turn;
        const std::uint64_t place =
            warp.from(good ? reinterpret_cast<std::uint64_t>(m.data) : 0, member);
        const std::uint32_t of_tile = warp.from(tile, member);
        // A team without a record compares with arbitrary memory, because all members of the warp
        // must continue together.
        char* const from = platform::assume_global(place == 0 ? memory_of_picture
                                                              : reinterpret_cast<char*>(place));
        const auto* const histogram = reinterpret_cast<const vector16*>(from);
        const std::uint32_t distance =
            distance_by_team(warp, warp.rank() % team_size, histogram, memory.histogram);
        made += distance;
        const std::uint64_t choice = choice_of(distance, of_tile);
        if (place != 0 && choice < best) best = choice;
      }
      (void)gmunmap_each_unfenced(warp, fs, m, made);
    }
    return g.least(best);
  }

  // Copies a tile's picture into the collage. A warp copies parts of `page_bytes_min` bytes, so
  // each part lies in one page of any size.
  GPUFS_HD GPUFS_OUT_OF_LINE void copy_tile(const block_group& g, const mount_ref& fs,
                                            const open_files& files, std::uint32_t tile,
                                            std::uint32_t b) const {
    constexpr std::uint32_t part = page_bytes_min;
    static_assert(picture_bytes % part == 0 && line_bytes % sizeof(vector16) == 0,
                  "whole parts, and whole vectors of lines");
    const warp_group warp = this_warp();
    for (std::uint32_t begin = g.warp_rank() * part; begin < picture_bytes;
         begin += g.warp_count() * part) {
      const std::uint64_t at = tile * std::uint64_t{sizeof(record)} + begin;
      const mapping m = gmmap(warp, fs, files.records, static_cast<std::int64_t>(at), part);
      if (m.bytes != part) {
        if (warp.is_leader()) failed.tell(role::records, m.bytes < 0 ? m.bytes : 0);
      } else {
        for (std::uint32_t i = warp.rank() * sizeof(vector16); i < part;
             i += warp_size * sizeof(vector16))
          *array<vector16>(of.collage + place_of(of.columns, b, begin + i)) =
              *reinterpret_cast<const vector16*>(m.data + i);
      }
      (void)gmunmap(warp, fs, m);
    }
  }
};

}  // namespace gpufs::collage

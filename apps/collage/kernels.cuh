// The kernel of collage.hpp.
#pragma once

#include "collage/features.hpp"
#include "job/files.cuh"

namespace gpufs::collage {

// The files of a job, in this order.
enum role : std::uint32_t { records, tables };

// Numbers that are put in once each, by threads of a block at the same time.
class short_list {
 public:
  // By all members; they are to wait for each other before the first is put in.
  GPUFS_HD void clear(const block_group& g) {
    for (std::uint32_t i = g.rank(); i < slots; i += g.size()) taken_[i].store_relaxed(0);
    if (g.is_leader()) count_.store_relaxed(0);
  }
  // By one thread. Relaxed: a barrier is between all that is put in and what is read.
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
  static_assert(slots >= 2 * candidates_max, "a search soon comes to a free slot, or to the number itself");
  atomic_word<std::uint32_t> taken_[slots];
  std::uint32_t tiles_[candidates_max];
  atomic_word<std::uint32_t> count_;
};

// What a block of threads knows of the block of the picture that it works on.
struct alignas(16) block_memory {
  std::uint64_t histogram[histogram_words];
  std::uint32_t found[table_count][taken_of_bucket];
  std::uint32_t bounds[table_count][2];
  std::uint32_t found_count[table_count];
  atomic_word<std::uint32_t> keys[table_count];
  atomic_word<std::uint32_t> counts[histogram_length];
  std::uint16_t feature[feature_length];
  short_list list;
};

// The sum of what the members with smaller ranks have.
GPUFS_HD inline std::uint32_t sum_before(const warp_group& g, std::uint32_t value) {
  std::uint32_t sum = value;
  for (std::uint32_t step = 1; step < g.size(); step *= 2) {
    const std::uint32_t other = g.from(sum, g.rank() < step ? g.rank() : g.rank() - step);
    if (g.rank() >= step) sum += other;
  }
  return sum - value;
}

// Some members of a warp compare a histogram together, so that a warp compares several at a time.
GPUFS_HD inline std::uint32_t team_size(const warp_group& g) { return g.size() < 8 ? g.size() : 8; }

// The distance of two histograms, by a team whose members have these ranks in it; in all of them. Several loads of the file's bytes are
// in flight.
GPUFS_HD inline std::uint32_t distance_by_team(const warp_group& g, std::uint32_t rank, const std::uint64_t* a,
                                               const std::uint64_t* b) {
  constexpr std::uint32_t at_once = 6;
  static_assert(histogram_words % (at_once * 8) == 0, "a team of eight and one of a single member have no rest");
  const std::uint32_t team = team_size(g);
  std::uint32_t sum = 0;
  for (std::uint32_t i = rank; i < histogram_words; i += at_once * team) {
    std::uint64_t words[at_once];
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < at_once; ++k) words[k] = a[i + k * team];
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < at_once; ++k) sum += word_distance(words[k], b[i + k * team]);
  }
  return sum_of(g, sum, team);
}

// For each block of a picture: its keys, the tiles of the buckets with these keys, the nearest of them, and its picture. By blocks of
// whole warps, with `block_memory` as scratch memory.
struct find_tiles : tuned_shape {
  const char *records, *tables;  // paths
  table_places places;
  const hash_function* functions;
  const std::uint8_t* picture;
  std::uint32_t columns, rows;  // of blocks
  std::uint64_t* choices;       // of each block; what it holds is for no one if anything failed
  std::uint8_t* collage;
  atomic_word<std::uint64_t>* candidates;
  std::uint32_t maps_of_warp;  // as many records as the cache has room for
  job::failure failed;

  // Its descriptors.
  struct open_files {
    std::int32_t records, tables;
  };

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    auto& memory = *reinterpret_cast<block_memory*>(block_group::scratch());
    const open_files files{job::open_to_read(g, fs, records, role::records, failed),
                           job::open_to_read(g, fs, tables, role::tables, failed)};
    const std::uint64_t blocks = std::uint64_t{columns} * rows;
    const bool open = files.records >= 0 && files.tables >= 0;
    for (std::uint64_t next = g.grid_rank(); next < blocks && open; next += g.grid_size()) {
      const auto b = static_cast<std::uint32_t>(next);
      make_keys(g, memory, b);
      make_list(g, fs, files, memory);
      const std::uint64_t best = nearest(g, fs, files, memory);
      if (g.is_leader()) {
        choices[b] = best;
        candidates->add_relaxed(memory.list.size());
      }
      if (best != no_choice) copy_tile(g, fs, files, tile_of(best), b);
      // All meet here, before the next block's overwrite what the leader reads. Where a file fails, each call might wait for its timeout.
      if (g.broadcast(failed.told() ? 1u : 0u) != 0) break;
    }
    // Of files that are only read.
    if (files.records >= 0) (void)gclose(g, fs, files.records);
    if (files.tables >= 0) (void)gclose(g, fs, files.tables);
  }

 private:
  // The four steps are out of line: each has the registers for itself then.

  // Where in the picture, or the collage, a byte of a block's own picture is.
  GPUFS_HD std::uint64_t place_of(std::uint32_t block, std::uint32_t byte) const {
    const std::uint64_t line = std::uint64_t{block / columns} * tile_side + byte / line_bytes;
    return (line * columns + block % columns) * line_bytes + byte % line_bytes;
  }

  // The block's histogram, feature and keys. Empties the list, too.
  GPUFS_HD GPUFS_OUT_OF_LINE void make_keys(const block_group& g, block_memory& memory, std::uint32_t b) const {
    const warp_group warp = g.warp();
    for (std::uint32_t i = g.rank(); i < histogram_length; i += g.size()) memory.counts[i].store_relaxed(0);
    for (std::uint32_t i = g.rank(); i < table_count; i += g.size()) memory.keys[i].store_relaxed(0);
    memory.list.clear(g);
    g.sync();
    // Relaxed, as the bits below: barriers are between all additions and who reads.
    for (std::uint32_t i = g.rank(); i < picture_bytes; i += g.size())
      (void)memory.counts[bin_of(i % channels, picture[place_of(b, i)])].fetch_add_relaxed(1);
    g.sync();
    auto* const histogram = reinterpret_cast<std::uint16_t*>(memory.histogram);
    for (std::uint32_t c = g.warp_rank(); c < channels; c += g.warp_count()) {
      const std::uint32_t own = bins / warp.size(), first = c * bins + warp.rank() * own;
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
    for (std::uint32_t i = g.rank(); i < table_count * places.bits; i += g.size()) {
      const std::uint32_t table = i / places.bits, bit = i % places.bits;
      const std::uint32_t value = key_bit(functions[table * bits_max + bit], memory.feature);
      (void)memory.keys[table].fetch_add_relaxed(value << bit);
    }
    g.sync();
  }

  // The tiles in the buckets with the block's keys, each once. Which bucket they are in is known when its bounds have been read.
  GPUFS_HD GPUFS_OUT_OF_LINE void make_list(const block_group& g, const mount_ref& fs, const open_files& files,
                                            block_memory& memory) const {
    const warp_group warp = g.warp();
    const std::uint32_t warps = g.warp_count();
    // Neighbouring tables are for different warps: what is not in the cache comes one after the other to a warp.
    for (std::uint32_t first = 0; first < table_count; first += warp.size() * warps) {
      const std::uint32_t own = first + warp.rank() * warps + g.warp_rank();
      const bool mine = own < table_count;
      const std::uint32_t table = mine ? own : 0;
      std::uint32_t* const bounds = memory.bounds[table];
      const std::uint64_t bytes = mine ? sizeof memory.bounds[0] : 0;
      const std::uint64_t at = places.offsets(table) + memory.keys[table].load_relaxed() * sizeof(std::uint32_t);
      bool good = read(warp, fs, files.tables, bounds, bytes, at) && mine;
      if (good && (bounds[0] > bounds[1] || bounds[1] > places.tiles)) {
        failed.tell(role::tables, -EINVAL);
        good = false;
      }
      const std::uint32_t in_bucket = good ? bounds[1] - bounds[0] : 0;
      const std::uint32_t taken = in_bucket < taken_of_bucket ? in_bucket : taken_of_bucket;
      const std::uint64_t from = places.numbers(table) + (good ? bounds[0] : 0) * sizeof(std::uint32_t);
      good = read(warp, fs, files.tables, memory.found[table], taken * sizeof(std::uint32_t), from);
      if (mine) memory.found_count[table] = good ? taken : 0;
    }
    g.sync();
    for (std::uint32_t i = g.rank(); i < candidates_max; i += g.size()) {
      const std::uint32_t table = i / taken_of_bucket, k = i % taken_of_bucket;
      if (k >= memory.found_count[table]) continue;
      if (memory.found[table][k] < places.tiles) memory.list.put(memory.found[table][k]);
      else failed.tell(role::tables, -EINVAL);
    }
    g.sync();
    if (memory.list.size() != 0) return;
    g.sync();  // all have seen that it is empty
    if (g.is_leader()) memory.list.put(tile_instead(memory.keys[0].load_relaxed(), places.tiles));
    g.sync();
  }

  // A part of a file for each member; whether the member's own came.
  GPUFS_HD bool read(const warp_group& warp, const mount_ref& fs, std::int32_t fd, std::uint32_t* to,
                     std::uint64_t bytes, std::uint64_t at) const {
    const std::int64_t got = gread_each(warp, fs, fd, to, bytes, static_cast<std::int64_t>(at));
    const bool good = got == static_cast<std::int64_t>(bytes);
    if (!good) failed.tell(role::tables, got < 0 ? got : 0);
    return good;
  }

  // The best choice of the list, whose tiles the warps share. A warp maps as many records at a time as it may, one for each member.
  GPUFS_HD GPUFS_OUT_OF_LINE std::uint64_t nearest(const block_group& g, const mount_ref& fs, const open_files& files,
                                                   const block_memory& memory) const {
    const warp_group warp = g.warp();
    const std::uint32_t batch = warp.size() < maps_of_warp ? warp.size() : maps_of_warp, size = memory.list.size();
    const std::uint32_t team = team_size(warp), teams = warp.size() / team;
    std::uint64_t best = no_choice;
    for (std::uint32_t first = g.warp_rank() * batch; first < size; first += g.warp_count() * batch) {
      const std::uint32_t own = first + warp.rank(), left = size - first, count = left < batch ? left : batch;
      const bool mine = warp.rank() < count;
      const std::uint32_t tile = mine ? memory.list[own] : 0;
      const std::uint64_t at = tile * std::uint64_t{sizeof(record)} + histogram_at;
      const mapping m = gmmap_each(warp, fs, files.records, static_cast<std::int64_t>(at), mine ? histogram_bytes : 0);
      const bool good = m.bytes == static_cast<std::int64_t>(histogram_bytes);
      if (mine && !good) failed.tell(role::records, m.bytes < 0 ? m.bytes : 0);
      std::uint32_t made = 0;
      for (std::uint32_t i = warp.rank() / team; i < ceiling(count, teams) * teams; i += teams) {
        const std::uint64_t place = warp.from(good ? reinterpret_cast<std::uint64_t>(m.data) : 0, i % batch);
        const std::uint32_t of = warp.from(tile, i % batch);
        // A team without a record compares the histogram with itself: all members of the warp are to go on together.
        const auto* const histogram = place == 0 ? memory.histogram : reinterpret_cast<const std::uint64_t*>(place);
        const std::uint32_t distance = distance_by_team(warp, warp.rank() % team, histogram, memory.histogram);
        made += distance;
        const std::uint64_t choice = choice_of(distance, of);
        if (place != 0 && i < count && choice < best) best = choice;
      }
      (void)gmunmap_each(warp, fs, m.bytes > 0 ? m.data : nullptr, made);
    }
    return g.least(best);
  }

  // A tile's picture into the collage, page by page.
  GPUFS_HD GPUFS_OUT_OF_LINE void copy_tile(const block_group& g, const mount_ref& fs, const open_files& files,
                                            std::uint32_t tile, std::uint32_t b) const {
    static_assert(line_bytes % sizeof(vector16) == 0, "a line is copied in whole vectors");
    for (std::uint32_t done = 0; done < picture_bytes;) {
      const std::uint64_t at = tile * std::uint64_t{sizeof(record)} + done;
      const mapping m = gmmap(g, fs, files.records, static_cast<std::int64_t>(at), picture_bytes - done);
      const std::uint32_t bytes =
          m.bytes < 0 ? 0 : static_cast<std::uint32_t>(m.bytes) / sizeof(vector16) * sizeof(vector16);
      for (std::uint32_t i = g.rank() * sizeof(vector16); i < bytes; i += g.size() * sizeof(vector16))
        *reinterpret_cast<vector16*>(collage + place_of(b, done + i)) = *reinterpret_cast<const vector16*>(m.data + i);
      if (m.bytes > 0) (void)gmunmap(g, fs, m.data);
      if (bytes == 0) {
        if (g.is_leader()) failed.tell(role::records, m.bytes < 0 ? m.bytes : 0);
        return;
      }
      done += bytes;
    }
  }
};

}  // namespace gpufs::collage

// The kernels of arrays.hpp.
#pragma once

#include <cstring>

#include "arrays/arrays.hpp"
#include "gpufs/gpufs.cuh"
#include "tuned_shape.hpp"

namespace gpufs::arrays {

// A word in pinned memory: 0; or in its low byte what has gone wrong, an errno or one of these, and
// above it where: a byte of the file, or the index. Stored whole, so that kind and place belong
// together, whoever is the last to fail.
struct failure {
  static constexpr std::uint64_t bad_index = 254, ended_early = 253;
  channel_word<std::uint64_t>* word;
  GPUFS_HD void tell(std::uint64_t kind, std::int64_t where) const {
    word->store_relaxed(kind | static_cast<std::uint64_t>(where) << 8);
  }
  // What a read or write at `at` gave that got nothing done.
  GPUFS_HD void tell_of(std::int64_t result, std::int64_t at) const {
    tell(result < 0 ? static_cast<std::uint64_t>(-result) : ended_early, at);
  }
};

// Calls `some(done)`, which returns how many bytes it has read or written behind the `done` first
// ones, or -errno, until all `bytes` are; or tells why not. Collective.
template <class Group, class Some>
GPUFS_HD void do_all(const Group& g, const failure& failed, std::uint64_t bytes, std::int64_t at,
                     const Some& some) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::int64_t result = some(done);
    if (result <= 0) {
      if (g.is_leader()) failed.tell_of(result, at + static_cast<std::int64_t>(done));
      return;
    }
    done += static_cast<std::uint64_t>(result);
  }
}

struct walk_shape : tuned_shape {
  // Of frames, while its warps wait for others: one each.
  static constexpr std::uint64_t pins_of_block = block_threads_max / 32;
};

GPUFS_HD inline std::int64_t item_of(const index_list& list, std::uint64_t i) {
  const auto load = [&](auto kind) {
    return static_cast<std::int64_t>(static_cast<const decltype(kind)*>(list.items)[i]);
  };
  switch (list.item_bytes) {
    case 1: return list.is_signed ? load(std::int8_t{}) : load(std::uint8_t{});
    case 2: return list.is_signed ? load(std::int16_t{}) : load(std::uint16_t{});
    case 4: return list.is_signed ? load(std::int32_t{}) : load(std::uint32_t{});
    default: return load(std::int64_t{});  // unsigned: see is_below
  }
}

// Where run number `run` begins. False when the list has no such place, which is told. By one
// thread.
GPUFS_HD inline bool place_of(const selection& s, const failure& failed, std::uint64_t run,
                              std::int64_t& at) {
  at = s.offset;
  for (std::uint32_t i = s.behind_count; i-- > 0;) {
    at += static_cast<std::int64_t>(run % s.behind[i].count) * s.behind[i].stride;
    run /= s.behind[i].count;
  }
  if (s.list.items != nullptr) {
    const std::uint64_t number = s.before_count == 0 ? run : run % s.list.count;
    if (s.before_count != 0) run /= s.list.count;
    std::int64_t item = item_of(s.list, number);
    if (s.list.length != 0) {
      // What an unsigned number has too much of is its sign here.
      const bool is_below = item < (s.list.is_signed ? -s.list.length : 0);
      if (is_below || item >= s.list.length) {
        failed.tell(failure::bad_index, item);
        return false;
      }
      if (item < 0) item += s.list.length;
    }
    at += item * s.list.stride;
  }
  for (std::uint32_t i = s.before_count; i-- > 0;) {
    at += static_cast<std::int64_t>(run % s.before[i].count) * s.before[i].stride;
    run /= s.before[i].count;
  }
  return true;
}

// Runs of at most a page, as many as a warp has members at a time.
template <detail::keeps Keeps>
struct read_records : walk_shape {
  selection from;
  std::int32_t fd;
  char* to;
  std::uint64_t runs;
  std::uint32_t batch;  // runs that a warp reads at once
  failure failed;

  GPUFS_HD read_records(const selection& s, std::int32_t f, char* t, std::uint64_t n,
                        std::uint32_t b, failure w)
      : from(s), fd(f), to(t), runs(n), batch(b), failed(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group g;
    const std::uint64_t step = g.grid_size() * batch, bytes = from.run_bytes;
    for (std::uint64_t first = g.grid_rank() * batch; first < runs; first += step) {
      const std::uint64_t run = first + g.rank();
      std::int64_t at = 0;
      const bool mine = g.rank() < batch && run < runs && place_of(from, failed, run, at);
      const std::int64_t got =
          detail::read_each<Keeps>(g, fs, fd, to + run * bytes, mine ? bytes : 0, at);
      if (!mine || got == static_cast<std::int64_t>(bytes)) continue;
      // Fewer: the file ends there, or there is an error behind it, of which a kernel tells one.
      failed.tell_of(got < 0 ? got : 0, got < 0 ? at : at + got);
    }
  }
};

// Runs that are worth a group each; long ones in pieces of `piece_bytes`, so that many groups are
// at one.
template <class Group, detail::keeps Keeps>
struct read_runs : walk_shape {
  selection from;
  std::int32_t fd;
  char* to;
  std::uint64_t runs, pieces, piece_bytes;
  failure failed;

  GPUFS_HD read_runs(const selection& s, std::int32_t f, char* t, failure w)
      : from(s), fd(f), to(t), failed(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const Group g;
    for (std::uint64_t i = g.grid_rank(); i < runs * pieces; i += g.grid_size()) {
      std::int64_t at = 0;
      if (place_of(from, failed, i / pieces, at)) read_piece(fs, g, i, at);
    }
  }

 private:
  GPUFS_HD void read_piece(const mount_ref& fs, const Group& g, std::uint64_t number,
                           std::int64_t run_at) const {
    const std::uint64_t run = number / pieces, begin = (number - run * pieces) * piece_bytes;
    const std::uint64_t left = from.run_bytes - begin,
                        bytes = left < piece_bytes ? left : piece_bytes;
    const std::int64_t at = run_at + static_cast<std::int64_t>(begin);
    char* const out = to + (run * from.run_bytes + begin);
    do_all(g, failed, bytes, at, [&](std::uint64_t done) {
      return detail::read_bytes<Keeps>(g, fs, fd, out + done, bytes - done,
                                       at + static_cast<std::int64_t>(done));
    });
  }
};

// Runs of a few bytes: each member of a warp copies one of its own.
struct read_small_runs : walk_shape {
  static constexpr std::uint64_t pins_of_block = block_threads_max;  // of each thread one
  selection from;
  std::int32_t fd;
  char* to;
  std::uint64_t runs;
  failure failed;

  GPUFS_HD read_small_runs(const selection& s, std::int32_t f, char* t, std::uint64_t n, failure w)
      : from(s), fd(f), to(t), runs(n), failed(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const warp_group g;
    const std::uint64_t step = g.grid_size() * g.size();
    for (std::uint64_t first = g.grid_rank() * g.size(); first < runs; first += step) {
      const std::uint64_t run = first + g.rank();
      std::int64_t at = 0;
      const bool there = run < runs && place_of(from, failed, run, at);
      std::uint64_t left = there ? from.run_bytes : 0;
      char* out = to + run * from.run_bytes;
      while (!g.all(left == 0)) {  // more than once where a page ends within a run
        const mapping m = gmmap_each(g, fs, fd, at, left);
        const std::uint64_t came = m.bytes > 0 ? static_cast<std::uint64_t>(m.bytes) : 0;
        copy_few(out, m.data, came);
        (void)gmunmap_each(g, fs, m.data);
        if (left != 0 && came == 0) {
          failed.tell_of(m.bytes, at);
          left = 0;
        }
        out += came;
        at += static_cast<std::int64_t>(came);
        left -= came;
      }
    }
  }

 private:
  template <class Word>
  GPUFS_HD static bool copied_as(char* out, const char* in, std::uint64_t bytes) {
    const std::uint64_t both =
        reinterpret_cast<std::uint64_t>(out) | reinterpret_cast<std::uint64_t>(in) | bytes;
    if (both % sizeof(Word) != 0) return false;
    for (std::uint64_t i = 0; i < bytes; i += sizeof(Word)) {
      Word w;
      std::memcpy(&w, in + i, sizeof w);
      std::memcpy(out + i, &w, sizeof w);
    }
    return true;
  }
  GPUFS_HD static void copy_few(char* out, const char* in, std::uint64_t bytes) {
    if (bytes == 0 || copied_as<std::uint64_t>(out, in, bytes) ||
        copied_as<std::uint32_t>(out, in, bytes))
      return;
    (void)(copied_as<std::uint16_t>(out, in, bytes) || copied_as<std::uint8_t>(out, in, bytes));
  }
};

// By blocks, a piece each.
struct write_pieces : walk_shape {
  const char* from;
  std::int32_t fd;
  std::uint64_t offset, bytes, piece_bytes;
  failure failed;

  GPUFS_HD write_pieces(const char* f, std::int32_t d, std::uint64_t o, std::uint64_t n,
                        std::uint64_t piece, failure w)
      : from(f), fd(d), offset(o), bytes(n), piece_bytes(piece), failed(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g;
    const std::uint64_t step = g.grid_size() * piece_bytes;
    for (std::uint64_t begin = g.grid_rank() * piece_bytes; begin < bytes; begin += step) {
      const std::uint64_t n = bytes - begin < piece_bytes ? bytes - begin : piece_bytes;
      const auto at = static_cast<std::int64_t>(offset + begin);
      do_all(g, failed, n, at, [&](std::uint64_t done) {
        return gwrite(g, fs, fd, from + begin + done, n - done,
                      at + static_cast<std::int64_t>(done));
      });
    }
  }
};

// What a call that the host waits for asks, and is answered; in pinned memory.
struct board {
  channel_word<std::uint64_t> failed;        // of reads
  channel_word<std::uint64_t> failed_write;  // a word of its own, as bytes may be lost
  std::int64_t result;
  file_status status;
  char path[limits::path_bytes_max + 1];
};

// Makes a call by one group, and tells its result.
template <class Call>
struct asked {
  static constexpr std::uint32_t threads = Call::group::has_warps ? 256 : 32;
  board* b;
  Call call;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const typename Call::group g;
    const std::int64_t result = call(g, fs, *b);
    if (g.is_leader()) b->result = result;
  }
};

// By a block those that write back, which its warps do together.
struct open_call {
  using group = warp_group;
  std::int32_t flags;
  std::uint32_t mode;
  GPUFS_HD std::int64_t operator()(const group& g, const mount_ref& fs, const board& b) const {
    return gopen(g, fs, b.path, flags, mode);
  }
};
struct close_call {
  using group = block_group;
  std::int32_t fd;
  GPUFS_HD std::int64_t operator()(const group& g, const mount_ref& fs, const board&) const {
    return gclose(g, fs, fd);
  }
};
struct status_call {
  using group = warp_group;
  static constexpr std::int64_t is_shared =
      1;  // the result, if the file has a node: somebody may be writing it here
  std::int32_t fd;
  GPUFS_HD std::int64_t operator()(const group& g, const mount_ref& fs, board& b) const {
    file_status status{};
    const std::int32_t result = gfstat(g, fs, fd, status);
    if (g.is_leader()) b.status = status;
    return result == 0 && detail::look_up(fs, fd).view.node != no_node ? is_shared : result;
  }
};
struct sync_call {
  using group = block_group;
  std::int32_t fd;
  GPUFS_HD std::int64_t operator()(const group& g, const mount_ref& fs, const board&) const {
    return gfsync(g, fs, fd);
  }
};
struct truncate_call {
  using group = warp_group;
  std::int32_t fd;
  std::int64_t size;
  GPUFS_HD std::int64_t operator()(const group& g, const mount_ref& fs, const board&) const {
    return gftruncate(g, fs, fd, size);
  }
};

}  // namespace gpufs::arrays

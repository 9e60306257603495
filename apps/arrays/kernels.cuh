// The kernels of arrays.hpp.
#pragma once

#include <cstring>

#include "arrays/arrays.hpp"
#include "common/tuned_shape.hpp"
#include "gpufs/gpufs.cuh"

namespace gpufs::arrays {

// A word in pinned memory. 0: no error. Otherwise the low byte has the errno or one of these kinds.
// The bits above have the place: a byte of the file, or the index. Stores write the whole word, so
// kind and place belong together, whichever thread stores last.
struct failure {
  static constexpr std::uint64_t bad_index = 254, ended_early = 253;
  channel_word<std::uint64_t>* word;
  GPUFS_HD void tell(std::uint64_t kind, std::int64_t where) const {
    word->store_relaxed(kind | static_cast<std::uint64_t>(where) << 8);
  }
  // Reports the result of a read or write at `at` that moved no bytes.
  GPUFS_HD void tell_of(std::int64_t result, std::int64_t at) const {
    tell(result < 0 ? static_cast<std::uint64_t>(-result) : ended_early, at);
  }
};

// Collective. Calls `some(done)` until all `bytes` are done, or reports the error. `some` returns
// how many bytes it has read or written after the first `done`, or -errno.
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
  // Frames that a block pins while its warps wait for other blocks: one a warp.
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

// Computes where run number `run` begins. Returns false, and reports it, if the list's item is out
// of range. Called by one thread.
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
      // An unsigned number that is too large is negative here.
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

// Reads runs of at most a page. A warp reads up to one run a member at a time.
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
      // Fewer bytes: the file ends there, or an error follows. A kernel reports one of them.
      failed.tell_of(got < 0 ? got : 0, got < 0 ? at : at + got);
    }
  }
};

// Reads runs that are worth a group each. Long runs are divided into pieces of `piece_bytes`, so
// that many groups read one run.
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

// Reads runs of a few bytes: each member of a warp copies a run of its own.
struct read_small_runs : walk_shape {
  static constexpr std::uint64_t pins_of_block = block_threads_max;  // one for each thread
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
      while (!g.all(left == 0)) {  // more than once if a page ends within a run
        const mapping m = gmmap_each(g, fs, fd, at, left);
        const std::uint64_t came = m.bytes > 0 ? static_cast<std::uint64_t>(m.bytes) : 0;
        copy_few(out, m.data, came);
        (void)gmunmap_each(g, fs, m);
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

// Writes pieces, one for each block. An append is one piece, and one call: the warps of the block
// write shares of it, so if the call writes fewer bytes, later ones may be in the file already, and
// another call would append them again.
struct write_pieces : walk_shape {
  const char* from;
  std::int32_t fd;
  std::uint64_t offset, bytes, piece_bytes;
  bool appends;
  failure failed;

  GPUFS_HD write_pieces(const char* f, std::int32_t d, std::uint64_t o, std::uint64_t n,
                        std::uint64_t piece, bool a, failure w)
      : from(f), fd(d), offset(o), bytes(n), piece_bytes(piece), appends(a), failed(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g;
    const std::uint64_t step = g.grid_size() * piece_bytes;
    for (std::uint64_t begin = g.grid_rank() * piece_bytes; begin < bytes; begin += step) {
      const std::uint64_t n = bytes - begin < piece_bytes ? bytes - begin : piece_bytes;
      const auto at = static_cast<std::int64_t>(offset + begin);
      do_all(g, failed, n, at, [&](std::uint64_t done) {
        const std::int64_t written =
            gwrite(g, fs, fd, from + begin + done, n - done, at + static_cast<std::int64_t>(done));
        const bool is_short = written >= 0 && static_cast<std::uint64_t>(written) < n - done;
        return appends && is_short ? std::int64_t{-EIO} : written;
      });
    }
  }
};

// A call that the host waits for, and its answer. In pinned memory.
struct board {
  channel_word<std::uint64_t> failed;  // for reads
  // a separate word, because failed writes may lose bytes
  channel_word<std::uint64_t> failed_write;
  std::int64_t result;
  file_status status;
  char path[limits::path_bytes_max + 1];
};

// One group makes the call and stores its result.
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

// Calls that write back are made by a block, because its warps write back together.
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
  // Bits of the result. The file has inode state, which its writers share, and which stays until
  // the last file that uses it is closed. The file has writers now.
  static constexpr std::int64_t is_shared = 1, is_written = 2;
  std::int32_t fd;
  GPUFS_HD std::int64_t operator()(const group& g, const mount_ref& fs, board& b) const {
    file_status status{};
    const std::int32_t result = gfstat(g, fs, fd, status);
    if (g.is_leader()) b.status = status;
    if (result != 0) return result;
    const std::uint32_t node = detail::look_up(fs, fd).view.node;
    if (node == no_node) return 0;
    // Acquire: pairs with the release of the last writer, which has flushed the file.
    return fs.node(node).writers.load_acquire() != 0 ? is_shared | is_written : is_shared;
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

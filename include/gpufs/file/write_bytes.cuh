// Writes: gwrite is made of these. They store bytes in pages, mark them dirty, and raise the size.
#pragma once

#include "gpufs/file/open_files.cuh"
#include "gpufs/file/size_use.cuh"

namespace gpufs::detail {

// Fills the frame of a page that is about to be written. It copies the caller's bytes if they cover
// the whole page, and then sets `*taken`; stores zeros if the page is never fetched (O_GWRONCE);
// otherwise loads the page.
template <class Group>
class page_to_write {
 public:
  GPUFS_HD page_to_write(const mount_ref& fs, const Group& g, const file_view& file,
                         std::uint64_t page, const char* whole, bool* taken)
      : fs_(fs), g_(g), load_(fs, g, file, page), once_((file.access & access_once) != 0),
        whole_(whole), taken_(taken) {}

  GPUFS_HD std::int32_t operator()(char* to) const {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    if (whole_ != nullptr) {
      copy_into_page(g_, to, whole_, page_bytes);
      *taken_ = true;
    } else if (once_) {
      fill_zero(g_, to, page_bytes);
    } else {
      return load_(to);
    }
    return static_cast<std::int32_t>(page_bytes);
  }

 private:
  const mount_ref& fs_;
  const Group g_;
  const page_loader<Group> load_;
  const bool once_;
  const char* whole_;  // null: the caller's bytes do not cover the page
  bool* taken_;
};

GPUFS_HD inline std::uint64_t version_to_write(const file_view& file) {
  return (file.access & access_once) != 0 ? file.version | once_bit : file.version;
}

// Writes back ahead of need, after a page has become dirty: most of the frames of its ring may be
// dirty.
template <class Group>
GPUFS_HD void write_back_ahead(const mount_ref& fs, const Group& g, const slot_key& key) {
  (void)by_one_warp(g, [&](const one_warp_of<Group>& part) {
    write_back(fs, part).ahead(frame_table(fs).rings().ring_of(key));
    return 0;
  });
}

// Concurrent writes and truncations.
//
// A truncation (truncate_file()):
// * waits for appends under way (begin_size_use());
// * makes `cuts` odd, and waits for write-backs under way;
// * has the host truncate the file, and stores the new size;
// * zeroes the cached pages past the new size, and notes that in the flags of each page
//   (page_dirt::note_cut());
// * makes `cuts` even again.
//
// A write stores its bytes, marks them, and raises the size. Then it checks whether a truncation
// may have zeroed some of the bytes that the size now covers:
// * write_any() reads `cuts` before the bytes and again afterwards. Equal: no truncation began or
//   ended in between.
// * write_resident() reads the flags of each page before it stores the bytes. Afterwards it reads
//   `cuts`: if no truncation is under way, each one has ended, or will find the marks and the size
//   and cut the bytes. Then it reads the flags again: no ended truncation has cut one of the pages
//   since. In the usual case (below) it does not read `cuts` at all, which would be one word for
//   all writers of the file.
//
// If the check fails, the write waits for the end of the truncation and writes all of the bytes
// again: it takes place after the truncation. If the check succeeds, each truncation came before
// the bytes, or cuts them: the write takes place before it.
//
// Two kinds of writes need no check:
// * A write whose pages were dirty, if no group has taken them for cleaning since before the bytes
//   were stored (page_dirt::set_again()), and if the size covered the bytes before the write marked
//   them. Then the pages are in the range of each truncation that has not stored its size yet, and
//   that truncation takes each page after the marks.
// * An append: no truncation runs at the same time.
//
// A write that makes the file longer marks pages that may be in the range of no truncation until
// the write raises the size. If a cleaner takes such a page in between, its bytes may be in the
// host's file when a truncation cuts that file, and the page is clean afterwards. So the write
// marks such a page again (finish_pinned()). models/growth.pml checks these orders.

// Whether no truncation was under way since wait_for_cut() returned `before`. Acquire and release:
// a truncation that begins later sees what the caller has marked. Called by one thread.
GPUFS_HD inline bool no_cut_since(const mount_ref& fs, const file_view& file,
                                  std::uint32_t before) {
  return fs.node(file.node).cuts.fetch_add_acq_rel(0) == before;
}
// Waits until no truncation is under way. Each truncation ends, with the host's answer or without.
// Returns `cuts`. Called by one thread.
GPUFS_HD inline std::uint32_t wait_for_cut(const mount_ref& fs, const file_view& file) {
  const atomic_word<std::uint32_t>& cuts = fs.node(file.node).cuts;
  std::uint32_t seen = cuts.load_acquire();
  if ((seen & 1) == 0) return seen;
  for (std::uint32_t attempt = 0; (seen & 1) != 0; ++attempt) {
    platform::pause(attempt);
    seen = cuts.load_for_wait();
  }
  cuts.end_wait();
  return seen;
}

// Raises the file's size to `end`; the bytes before it are marked. Acquire and release: a caller
// that sees the size of a truncation also sees that it is under way.
GPUFS_HD inline void raise_size(const mount_ref& fs, const file_view& file, std::uint64_t end) {
  const inode_state& node = fs.node(file.node);
  if (end > allowed_size(node, node.size.load_relaxed()))
    fs.node(file.node).size.fetch_max_acq_rel(end);
}
// Whether a file of this size has all bytes before `end`.
GPUFS_HD inline bool covers(std::uint64_t size, std::uint64_t end) {
  return end <= size && size < limits::file_bytes_max;
}

// How many bytes of [at, end) lie in the page of `at`.
GPUFS_HD inline std::uint64_t part_in_page(const mount_ref& fs, std::uint64_t at,
                                           std::uint64_t end) {
  const std::uint64_t room = fs.layout.page_bytes() - (at & (fs.layout.page_bytes() - 1));
  return room < end - at ? room : end - at;
}

// Where a write stopped. The `pinned` pages from `at` on have their bytes and their bits, and are
// pinned, but the write of them is not complete. The member with rank i has the frame of page i of
// these, in `seen` the flags of the page from before the bytes, and whether the page is still
// `unmarked`. `covered`: the size covered the bytes before the marks.
struct write_end {
  std::uint64_t at;
  std::uint32_t pinned;
  std::uint32_t frame;
  std::uint32_t seen;
  bool unmarked;
  bool covered;
};

// Writes pages that are dirty in the cache already, optimistically, from `at` on; `from` points to
// the byte for `at`. Writes several pages at once, so that their latencies overlap. Stops at a page
// that was clean, or past the end of the file.
//
// Calls no function that is out of line, for the reason given at read_resident(). `appends`: the
// size covers the bytes already, and no truncation begins during the call; so it does not read the
// size, which would be one word for all appends. Collective, not for a block. Does not wait.
template <class Group>
GPUFS_HD write_end write_resident(const mount_ref& fs, const Group& g, const file_view& file,
                                  const char* from, std::uint64_t at, std::uint64_t end,
                                  bool appends) {
  const std::uint64_t page_bytes = fs.layout.page_bytes();
  const std::uint32_t most = g.size() < pins_of_copy ? g.size() : pins_of_copy;
  page_cache<Group> cache(fs, g, file.record);
  while (at < end) {
    const std::uint64_t page = at >> fs.layout.page_shift;
    const std::uint64_t left = ((end - 1) >> fs.layout.page_shift) + 1 - page;
    page_pin mine{};
    std::uint32_t seen = 0;
    const std::uint32_t pinned = cache.template pin_several<slot_header::use::stores>(
        version_to_write(file), page, left < most ? static_cast<std::uint32_t>(left) : most, mine,
        &seen);
    if (pinned == 0) break;
    const bool has_one = g.rank() < pinned;
    const std::uint64_t behind = (page + pinned) << fs.layout.page_shift;
    const std::uint64_t stop = behind < end ? behind : end;
    std::uint64_t to = at;
    GPUFS_NO_UNROLL
    for (std::uint32_t i = 0; i < pinned; ++i) {
      const std::uint64_t n = part_in_page(fs, to, stop);
      copy_into_page(g, fs.page(g.from(mine.frame, i)) + (to & (page_bytes - 1)), from + (to - at),
                     n);
      to += n;
    }
    GPUFS_SCHEDULE_POINT("write.mark");
    g.sync();  // All members' stores come before each member's bits and flags.
    // Only the first and the last pinned page can be written in part.
    const std::uint64_t first_end = at + part_in_page(fs, at, stop);
    const std::uint64_t last = (page + pinned - 1) << fs.layout.page_shift;
    const bool first_is_part = first_end - at != page_bytes;
    const bool last_is_part = pinned > 1 && stop - last != page_bytes;
    if (first_is_part)
      set_bits(fs, g, g.from(mine.frame, 0), at & (page_bytes - 1),
               ((first_end - 1) & (page_bytes - 1)) + 1);
    if (last_is_part) set_bits(fs, g, g.from(mine.frame, pinned - 1), 0, stop - last);
    if (first_is_part || last_is_part) g.sync();
    // Each member reads the size before it marks: see "Concurrent writes and truncations". All
    // members read it in one access, because all writers of the file read this word.
    const std::uint64_t size = appends ? stop : fs.node(file.node).size.load_relaxed();
    bool marked = true;
    if (has_one) {
      const bool part =
          (g.rank() == 0 && first_is_part) || (g.rank() == pinned - 1 && last_is_part);
      marked =
          page_dirt(fs, mine.frame).set_again(seen, part ? page_dirt::partial : page_dirt::whole);
    }
    const bool covered = covers(size, stop);
    if (!g.all(marked && covered)) return {at, pinned, mine.frame, seen, !marked, g.all(covered)};
    // No fence needed, for the reason given in mark_page().
    if (has_one) frame_table(fs).header(mine.frame).state.unpin_copied();
    from += stop - at;
    at = stop;
  }
  return {at, 0, 0, 0, false, true};
}

// The overload for blocks: writes one page with all threads.
template <class Block>
  requires Block::has_warps
GPUFS_HD write_end write_resident(const mount_ref& fs, const Block& g, const file_view& file,
                                  const char* from, std::uint64_t at, std::uint64_t end,
                                  bool appends) {
  page_cache<Block> cache(fs, g, file.record);
  std::uint32_t seen = 0;
  const page_pin pin = cache.template find_resident<slot_header::use::stores>(
      {version_to_write(file), at >> fs.layout.page_shift}, &seen);
  if (pin.valid == cache.not_there) return {at, 0, 0, 0, false, true};
  cache.count_hits();
  const std::uint64_t within = at & (fs.layout.page_bytes() - 1);
  copy_into_page(g, fs.page(pin.frame) + within, from, end - at);
  GPUFS_SCHEDULE_POINT("write.mark");
  const std::uint32_t what = mark_bytes(fs, g, pin.frame, within, within + (end - at));
  struct {
    std::uint32_t marked, covered;
  } done{1, 1};
  if (g.is_leader()) {
    if (!appends) done.covered = covers(fs.node(file.node).size.load_relaxed(), end) ? 1 : 0;
    done.marked = page_dirt(fs, pin.frame).set_again(seen, what) ? 1 : 0;
    if (done.marked != 0 && done.covered != 0)
      frame_table(fs).header(pin.frame).state.unpin_copied();
  }
  done = g.broadcast(done);
  if (done.marked != 0 && done.covered != 0) return {end, 0, 0, 0, false, true};
  return {at, 1, pin.frame, seen, g.is_leader() && done.marked == 0, done.covered != 0};
}

// Marks a page into which the caller has stored bytes, and releases the caller's pin. Returns
// whether the page was clean. Called by one thread.
GPUFS_HD inline bool mark_page(const mount_ref& fs, const file_view& file,
                               std::uint32_t frame_number, std::uint32_t what) {
  const bool fresh = page_dirt(fs, frame_number).set(file.node, what);
  // No fence needed: the marking has ordered the caller's stores, and a dirty page is not evicted.
  frame_table(fs).header(frame_number).state.unpin_copied();
  return fresh;
}

// Completes the pinned pages of write_resident(): marks the pages, raises the size, and checks for
// truncations. Returns where the write stopped. Collective.
template <class Group>
GPUFS_HD std::uint64_t finish_pinned(const mount_ref& fs, const Group& g, const file_view& file,
                                     const write_end& done, std::uint64_t end, bool appends) {
  if (done.pinned == 0) return done.at;
  const std::uint64_t page = done.at >> fs.layout.page_shift;
  const std::uint64_t behind = (page + done.pinned) << fs.layout.page_shift;
  const std::uint64_t stop = behind < end ? behind : end;
  const bool has_page = g.rank() < done.pinned;
  // Returns the value of the member with rank i. A block has one page, which its leader has.
  const auto from_member = [&](std::uint32_t value, [[maybe_unused]] std::uint32_t i) {
    if constexpr (Group::has_warps) return g.broadcast(value);
    else return g.from(value, i);
  };
  bool unmarked = done.unmarked, covered = done.covered, fresh = false, cut = false;
  for (;;) {
    std::uint64_t at = done.at;
    for (std::uint32_t i = 0; i < done.pinned; ++i) {
      const std::uint64_t n = part_in_page(fs, at, stop),
                          within = at & (fs.layout.page_bytes() - 1);
      at += n;
      if (from_member(unmarked ? 1 : 0, i) == 0) continue;
      const std::uint32_t what = mark_bytes(fs, g, from_member(done.frame, i), within, within + n);
      if (g.rank() != i) continue;
      fresh = page_dirt(fs, done.frame).set(file.node, what) || fresh;
    }
    g.sync();
    if (appends) break;
    std::uint32_t under_way = 0;
    if (g.is_leader()) {
      raise_size(fs, file, stop);
      // Acquire and release: as in no_cut_since().
      under_way = fs.node(file.node).cuts.fetch_add_acq_rel(0) & 1;
    }
    under_way = g.broadcast(under_way);
    const std::uint32_t now = has_page ? page_dirt(fs, done.frame).flags() : done.seen;
    cut = under_way != 0 || !g.all(!has_page || page_dirt::is_uncut(done.seen, now));
    if (cut || covered) break;
    unmarked = has_page && !page_dirt::is_untaken(done.seen, now);
    if (g.all(!unmarked)) break;
    covered = true;
  }
  g.sync();
  if (has_page) frame_table(fs).header(done.frame).state.unpin_copied();
  for (std::uint32_t i = 0; i < done.pinned; ++i) {
    if (from_member(fresh ? 1 : 0, i) != 0)
      write_back_ahead(fs, g, {version_to_write(file), page + i});
  }
  return cut ? done.at : stop;
}

// Evicts the pinned pages of write_resident() when the descriptor was closed during the write: no
// descriptor is left under which its bytes may be marked. Collective.
template <class Group>
GPUFS_HD void evict_pinned(const mount_ref& fs, const Group& g, const write_end& done) {
  g.sync();
  (void)by_one_warp(g, [&](const one_warp_of<Group>& part) {
    for (std::uint32_t i = 0; i < done.pinned; ++i) {
      write_back(fs, part).evict_unwritten(part.from(done.frame, i));
    }
    return 0;
  });
}

// Releases the part [at, end) of the place of an append that has written only the bytes before
// `at`, if no other append has a place after it, and if no other bytes may lie in it: those of a
// group that writes at other places than the end (note_other_writes()). Called by one thread,
// during the append's size use.
GPUFS_HD inline void give_place_back(const mount_ref& fs, std::uint32_t number, std::uint64_t at,
                                     std::uint64_t end) {
  inode_state& node = fs.node(number);
  if (at == end || node.other_writes.load_relaxed() != 0) return;
  std::uint64_t expected = end;
  (void)node.size.compare_exchange_relaxed(expected, at);
}

// Completes a write of [begin, end), of which write_resident() has written the part that `done`
// describes. `appends`: [begin, end) is a whole append.
//
// Returns the bytes written, or -errno if none. Looks the descriptor up again, so that the fast
// path keeps nothing in registers that only this function needs. Collective. Waits for I/O.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int64_t write_any(const mount_ref& fs, const Group g,
                                                  std::int32_t fd, const char* from,
                                                  std::uint64_t begin, const write_end done,
                                                  std::uint64_t end, bool appends) {
  const found_file found = find_to_write(fs, g, fd);
  if (found.error != 0) {
    evict_pinned(fs, g, done);
    return found.error;
  }
  const file_view& file = found.view;
  const std::uint64_t page_bytes = fs.layout.page_bytes();
  const std::uint64_t version = version_to_write(file);
  std::int32_t error = 0;
  std::uint64_t at = finish_pinned(fs, g, file, done, end, appends);
  while (at < end) {
    const std::uint64_t page = at >> fs.layout.page_shift;
    const std::uint64_t within = at & (page_bytes - 1), n = part_in_page(fs, at, end);
    const char* const bytes = from + (at - begin);
    bool taken = false;
    std::uint32_t cuts = 0;
    if (!appends && g.is_leader()) cuts = wait_for_cut(fs, file);
    page_cache<Group> cache(fs, g, file.record);
    const page_pin pin = cache.acquire(
        {version, page},
        page_to_write<Group>(fs, g, file, page, n == page_bytes ? bytes : nullptr, &taken));
    if (pin.valid < 0) {
      error = pin.valid;
      break;
    }
    if (!taken) copy_into_page(g, fs.page(pin.frame) + within, bytes, n);
    const std::uint32_t what = mark_bytes(fs, g, pin.frame, within, within + n);
    struct {
      std::uint32_t fresh, stays;
    } marked{0, 0};
    if (g.is_leader()) {
      GPUFS_SCHEDULE_POINT("write.mark");
      marked.fresh = mark_page(fs, file, pin.frame, what) ? 1 : 0;
      raise_size(fs, file, at + n);
      marked.stays = appends || no_cut_since(fs, file, cuts) ? 1 : 0;
    }
    marked = g.broadcast(marked);
    if (marked.fresh != 0) write_back_ahead(fs, g, {version, page});
    if (marked.stays != 0) at += n;
  }
  g.sync();
  if (appends && g.is_leader()) give_place_back(fs, file.node, at, end);
  if (at == begin && error != 0) return error;
  if (g.is_leader()) fs.counters().add(counter::written_bytes, at - begin);
  return static_cast<std::int64_t>(at - begin);
}

// Writes [begin, end) of `file`, which `fd` stands for; `from` points to the first byte. `appends`:
// as in write_any(). Returns the bytes written, fewer than asked only before an error; or -errno.
// Collective. Waits for I/O.
template <class Group>
GPUFS_HD std::int64_t write_bytes(const mount_ref& fs, const Group& g, std::int32_t fd,
                                  const file_view& file, const char* from, std::uint64_t begin,
                                  std::uint64_t end, bool appends) {
  const Group own = g.apart();
  const write_end done = write_resident(fs, own, file, from, begin, end, appends);
  if (done.at != end) return write_any(fs, g, fd, from, begin, done, end, appends);
  own.sync();
  if (own.is_leader()) fs.counters().add(counter::written_bytes, end - begin);
  return static_cast<std::int64_t>(end - begin);
}

// Called by a block for several pages: each warp writes a share of them.
template <class Block>
GPUFS_HD GPUFS_OUT_OF_LINE std::int64_t write_shares(const mount_ref& fs, const Block g,
                                                     std::int32_t fd, const file_view file,
                                                     const char* from, std::uint64_t begin,
                                                     std::uint64_t end, bool appends) {
  const std::uint64_t page = begin >> fs.layout.page_shift;
  const std::uint64_t pages = ((end - 1) >> fs.layout.page_shift) + 1 - page;
  const auto warp = g.warp();
  const std::uint64_t share = (pages + g.warp_count() - 1) / g.warp_count();
  const std::uint64_t own_page = page + g.warp_rank() * share;
  const std::uint64_t own_begin = own_page << fs.layout.page_shift,
                      own_end = (own_page + share) << fs.layout.page_shift;
  const std::uint64_t first = own_begin < begin ? begin : own_begin,
                      stop = own_end < end ? own_end : end;
  std::int64_t written = 0;
  // gap: where the unwritten part of the warp's share begins; top: the end of what the warp has
  // written.
  std::uint64_t gap = end, top = begin;
  g.sync();  // The source is complete.
  if (first < stop) {
    written = write_bytes(fs, warp, fd, file, from + (first - begin), first, stop, false);
    const std::uint64_t came = written < 0 ? 0 : static_cast<std::uint64_t>(written);
    if (came != stop - first) gap = first + came;
    if (came != 0) top = first + came;
  }
  gap = g.least(gap);
  if (appends && gap != end) {
    top = ~g.least(~top);  // the largest of all warps
    // If the descriptor was closed during the write, the node may be another file's.
    if (g.all(written != -EBADF) && g.is_leader())
      give_place_back(fs, file.node, gap < top ? top : gap, end);
  }
  // If nothing was written, the first warp's error is the result; the leader belongs to that warp.
  if (gap == begin) return g.broadcast(written);
  return static_cast<std::int64_t>(gap - begin);
}

template <class Block>
  requires Block::has_warps
GPUFS_HD std::int64_t write_bytes(const mount_ref& fs, const Block& g, std::int32_t fd,
                                  const file_view& file, const char* from, std::uint64_t begin,
                                  std::uint64_t end, bool appends) {
  if (begin >> fs.layout.page_shift != (end - 1) >> fs.layout.page_shift)
    return write_shares(fs, g, fd, file, from, begin, end, appends);
  const write_end done = write_resident(fs, g, file, from, begin, end, appends);
  if (done.at != end) return write_any(fs, g, fd, from, begin, done, end, appends);
  if (g.is_leader()) fs.counters().add(counter::written_bytes, end - begin);
  return static_cast<std::int64_t>(end - begin);
}

}  // namespace gpufs::detail

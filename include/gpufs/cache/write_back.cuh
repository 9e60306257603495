// Write-back of dirty pages to their files: for a group that needs a frame, ahead of that need, and
// for sync and close.
//
// A group takes a run of dirty pages (cache/dirty_run.cuh) and copies their bytes and masks into
// the staging memory of a channel slot (cache/run_writer.cuh). The host writes them; the group
// waits for the answer. Then the file has the bytes, for every reader. (cache/dirty.cuh has the
// protocol of one page.) The pages stay cached, and pinned while the write is in flight, so no
// group loads bytes that the file does not have yet.
//
// Progress: a group takes pages without waiting. While it holds some, it waits only for a channel
// slot and for the host; both waits end. A group that waits for another group's write-back (flush)
// holds no taken page.
#pragma once

#include "gpufs/cache/dirty_run.cuh"
#include "gpufs/cache/inode_state.cuh"
#include "gpufs/cache/run_writer.cuh"

namespace gpufs::detail {

// Called by one warp, or by one thread.
template <class Group>
class write_back : run_writer<Group> {
  static_assert(!Group::has_warps, "by one warp of a block");
  using base = run_writer<Group>;

 public:
  using base::contended, base::gave_up, base::give_slot_back, base::take_slot;

  GPUFS_HD write_back(const mount_ref& fs, const Group& g) : base(fs, g) {}

  // Writes back all dirty pages of a version, and waits for those that other groups are writing
  // back. Returns 0 when the file has them; otherwise the first error, and some pages are still
  // dirty. The caller reports the error; it is not kept for others. Collective. Waits for the host;
  // ends when the host does not answer.
  //
  // `last`: the caller is the last writer, so pages past the file's end are written too. `size`: of
  // the file. `part`, `parts`: each of `parts` warps writes its share; all pass the same size, and
  // all have the same number of members.
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t flush(std::uint64_t version, std::uint32_t node,
                                                bool last, std::uint64_t size,
                                                std::uint32_t part = 0, std::uint32_t parts = 1) {
    std::int32_t error = 0;
    keeps_errors_ = false;
    marks_again_ = !last;
    part_ = part;
    parts_ = parts;
    for_each_page(version, node, last, size, [&](std::uint32_t frame_number, const slot_key& key) {
      const std::int32_t result = write_page(frame_number, key);
      if (error == 0) error = result;
      return !gave_up_ && is_dirty(node);
    });
    return error;
  }

  // Writes back the dirty pages in [first, end) of a version, except those that other groups are
  // writing. Errors are kept for the next sync or close. `part`, `parts`: as in flush().
  // Collective. Waits for the host.
  GPUFS_HD GPUFS_OUT_OF_LINE void flush_part(std::uint64_t version, std::uint32_t node,
                                             std::uint64_t first, std::uint64_t end,
                                             std::uint32_t part, std::uint32_t parts) {
    part_ = part;
    parts_ = parts;
    for (std::uint64_t kind = 0; kind <= once_bit; kind += once_bit) {
      for_each_resident(version | kind, first, end, pages_asked::dirty,
                        [&](std::uint32_t frame_number) {
                          const slot_key key = key_of(frame_number);
                          if (key.high == (version | kind)) (void)write_around(frame_number, key);
                          return !gave_up_ && is_dirty(node);
                        });
    }
  }

  // As flush(), for one page that the caller has pinned.
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t flush_page(std::uint32_t frame_number) {
    keeps_errors_ = false;
    return write_page(frame_number, key_of(frame_number));
  }

  // Drops the dirty bytes of a file without writers that could not be written, and evicts their
  // pages. Collective. Waits for other groups' write-backs, and `evicting_ns` at most for pins.
  GPUFS_HD GPUFS_OUT_OF_LINE void discard(std::uint64_t version, std::uint32_t node) {
    const std::uint64_t start = platform::now_ns();
    for_each_page(version, node, true, file_size(fs_, g_, node),
                  [&](std::uint32_t frame_number, const slot_key& key) {
                    if (begin_after_others(frame_number, key) != 0) {
                      forget_mask(frame_number);
                      if (g_.is_leader()) {
                        dirty_run<Group>::end_page(fs_, frame_number, node, 0);
                        // The file does not have these bytes, so no group may find the page any
                        // more. A reader's pin ends soon; but a mapping keeps the page.
                        for (std::uint32_t attempt = 0;
                             !evict(frame_number, key) && platform::elapsed_ns(start) < evicting_ns;
                             ++attempt)
                          platform::pause(attempt);
                      }
                    }
                    return is_dirty(node);
                  });
  }

  // For a page that the caller has pinned and stored into, with the bits set, but may not mark
  // dirty. Evicts the page and clears its mask, unless another group made the page dirty; then the
  // page goes to the file as it is. A mapping keeps the page and the bits. Ends the caller's pin.
  // Collective. Waits for other groups' pins, `evicting_ns` at most.
  GPUFS_HD GPUFS_OUT_OF_LINE void evict_unwritten(std::uint32_t frame_number) {
    const std::uint64_t start = platform::now_ns();
    std::uint32_t mine = 0;
    if (g_.is_leader()) {
      page_dirt dirt(fs_, frame_number);
      // Several groups may be here with a pin each. Only the first one waits for the page to have
      // no other pin; otherwise they would wait for each other.
      if (dirt.mark_stale()) {
        for (std::uint32_t attempt = 0; mine == 0 && !is_dirty_page(frame_number); ++attempt) {
          mine = frame_table(fs_).claim_pinned(frame_number) ? 1 : 0;
          if (platform::elapsed_ns(start) > evicting_ns) break;
          if (mine == 0) platform::pause(attempt);
        }
        dirt.unmark_stale();
      }
      if (mine == 0) frame_table(fs_).unpin(frame_number);
    }
    mine = g_.broadcast(mine);
    if (mine == 0) return;
    forget_mask(frame_number);
    if (g_.is_leader()) header(frame_number).state.release();
  }

  // The least length of a run to write back, in pages; a shorter run is enough where it fills its
  // stretch (cache/dirty_run.cuh). A file that is written from front to back should be written in
  // large pieces, not in the pieces that happen to be dirty.
  static constexpr std::uint32_t any_run = 1, long_run = 16, whole_stretch = ~0u;

  // Writes back a stretch with dirty pages of a ring, among the pages that would be evicted first.
  // Returns whether it was written. Errors are kept for sync and close. The caller has a
  // channel slot (take_slot()). Collective. Waits for the host.
  GPUFS_HD GPUFS_OUT_OF_LINE bool some(std::uint32_t ring_number, std::uint32_t least) {
    slot_ring& ring = fs_.template at<slot_ring>(fs_.layout.rings)[ring_number];
    constexpr std::uint32_t visits = 32;
    struct {
      std::uint64_t seen, from;
    } at{0, 0};
    if (g_.is_leader()) at = {ring.clean.load_relaxed(), place_to_look(ring)};
    at = g_.broadcast(at);
    bool done = false;
    std::uint32_t looked = 0, tries = least == any_run ? visits : visits / 8;
    const std::uint64_t stretch = dirty_run<Group>(fs_, g_).stretch_pages();
    for (; looked < visits && looked < ring.count && !done && tries != 0;
         looked += done ? 0 : g_.size()) {
      const std::uint32_t mine = ring.slot_at(at.from + looked + g_.rank());
      bool found = page_needs_writing(mine);
      const slot_key own = found ? header(mine).key() : slot_key{};
      for (; !done && tries != 0; --tries) {
        const std::uint32_t next = g_.leading(!found);
        if (next == g_.size()) break;
        const std::uint32_t frame_number = g_.from(mine, next);
        const slot_key key = key_of(frame_number);
        const attempt a = write_longest(frame_number, key, least);
        done = a.took && (a.error == 0 || gave_up_);
        if (done) looked += next + 1;
        // Skip the other pages of this stretch too: the result holds for all of them.
        found = found && g_.rank() != next &&
                !(own.high == key.high && own.low / stretch == key.low / stretch);
        if (a.took) found = found && page_needs_writing(mine);
      }
    }
    // Not retried: if this fails, another group has looked at these slots.
    if (g_.is_leader()) (void)ring.clean.compare_exchange_relaxed(at.seen, at.from + looked);
    return done && !gave_up_;
  }
  // As some(), if much of the ring is dirty and the host has a slot free, so that a group that
  // needs a frame finds one. Collective. Waits for the host if it writes.
  GPUFS_HD GPUFS_OUT_OF_LINE void ahead(std::uint32_t ring_number) {
    const slot_ring& ring = fs_.template at<slot_ring>(fs_.layout.rings)[ring_number];
    std::uint32_t quarters = 0;
    if (g_.is_leader()) quarters = ring.dirty.load_relaxed() / (ring.count / 4 + 1);
    quarters = g_.broadcast(quarters);
    if (quarters == 0 || !take_slot(false)) return;
    const bool written = some(ring_number, quarters >= 3 ? long_run : whole_stretch);
    // Writes many small pieces only as the last resort. If other groups are at a stretch, frames
    // become free soon anyway.
    if (!written && quarters >= 3 && !gave_up_ && !contended_) (void)some(ring_number, any_run);
    give_slot_back();
  }

  // Calls `act(frame)`, collectively, for each cached page of the version in [first, end), until it
  // returns false. Pages that come or go meanwhile may be missed. `asked`: all pages, or only those
  // that are dirty or being written.
  enum class pages_asked : std::uint32_t { all, dirty };
  template <class Act>
  GPUFS_HD void for_each_resident(std::uint64_t version, std::uint64_t first, std::uint64_t end,
                                  pages_asked asked, const Act& act) {
    const bool by_key = end - first <= fs_.layout.frame_count / 4;
    const std::uint64_t count = by_key ? end - first : fs_.layout.frame_count;
    // A stretch is written as a whole, so each part gets whole stretches.
    const std::uint32_t stretch =
        by_key && parts_ > 1 ? dirty_run<Group>(fs_, g_).stretch_pages() : 1;
    const std::uint64_t own = std::uint64_t{(stretch + g_.size() - 1) / g_.size()} * g_.size();
    const std::uint64_t others = (parts_ - 1) * own;
    for (std::uint64_t i = part_ * own; i < count;
         i += g_.size() + ((i + g_.size()) % own == 0 ? others : 0)) {
      std::uint32_t mine = 0;
      bool found = false;
      if (i + g_.rank() < count) {
        if (by_key) {
          found = look_up({version, first + i + g_.rank()}, mine);
        } else {
          mine = static_cast<std::uint32_t>(i + g_.rank());
          const slot_key key = header(mine).key();
          const slot_phase phase = slot_state::phase(header(mine).state.load());
          found = key.high == version && key.low >= first && key.low < end &&
                  (phase == slot_phase::resident || phase == slot_phase::loading);
        }
      }
      for (;;) {
        // Checked again after each page: its write may have included its neighbours.
        if (asked == pages_asked::dirty) found = found && is_dirty_page(mine);
        const std::uint32_t next = g_.leading(!found);
        if (next == g_.size()) break;
        const std::uint32_t frame_number = g_.from(mine, next);
        if (g_.rank() == next) found = false;
        if (!act(frame_number)) return;
      }
    }
  }

  // Takes the page for cleaning, after all other groups have finished with it. Returns its dirty
  // flags; 0 only when the page is clean. Collective; waits for the other groups.
  GPUFS_HD std::uint32_t begin_after_others(std::uint32_t frame_number, const slot_key& key) {
    for (;;) {
      wait_for_cleaner(frame_number);
      std::uint32_t what = 0;
      if (g_.is_leader()) what = dirty_run<Group>::begin_page(fs_, frame_number, key);
      what = g_.broadcast(what);
      // A dirty page is tried again: the other group may have failed, and put back what it took.
      if (what != 0 || !needs_writing(frame_number, key)) return what;
    }
  }
  // Clears the page's mask. Collective.
  GPUFS_HD void forget_mask(std::uint32_t frame_number) {
    atomic_word<std::uint64_t>* const mask = fs_.mask(frame_number);
    for (std::uint64_t w = g_.rank(); w < mask_words(fs_.layout.page_bytes()); w += g_.size())
      (void)mask[w].exchange_acq_rel(0);
    g_.sync();
  }
  // Waits until no other group is writing the page back. Collective. The caller must not hold a
  // page that it is cleaning.
  GPUFS_HD void wait_for_cleaner(std::uint32_t frame_number) {
    if (g_.is_leader()) {
      const page_dirt dirt(fs_, frame_number);
      for (std::uint32_t attempt = 0; (dirt.flags() & page_dirt::cleaning) != 0; ++attempt)
        platform::pause(attempt);
    }
    g_.sync();
  }

 private:
  using base::contended_, base::fs_, base::g_, base::gave_up_, base::keeps_errors_,
      base::marks_again_, base::write;
  using typename base::attempt;

  GPUFS_HD slot_header& header(std::uint32_t frame_number) const {
    return frame_table(fs_).header(frame_number);
  }
  // The key, the same in all members.
  GPUFS_HD slot_key key_of(std::uint32_t frame_number) const {
    return g_.broadcast(header(frame_number).key());
  }
  GPUFS_HD hash_index<frame_table> index() const { return frame_table(fs_).index(); }

  // Finds the page's current frame, without a pin. Called by one thread.
  GPUFS_HD bool look_up(const slot_key& key, std::uint32_t& frame_number) const {
    const pinned_slot there = index().find_and_pin(key);
    if (!there.found) return false;
    frame_table(fs_).unpin(there.slot);
    frame_number = there.slot;
    return true;
  }

  // Whether the frame still holds the page, and it is dirty or being written. Collective.
  GPUFS_HD bool needs_writing(std::uint32_t frame_number, const slot_key& key) const {
    std::uint32_t yes = 0;
    if (g_.is_leader())
      yes = is_dirty_page(frame_number) && header(frame_number).key() == key ? 1 : 0;
    return g_.broadcast(yes) != 0;
  }
  // Whether the page is dirty or being written.
  GPUFS_HD bool is_dirty_page(std::uint32_t frame_number) const {
    return (page_dirt(fs_, frame_number).flags() & (page_dirt::dirty | page_dirt::cleaning)) != 0;
  }
  GPUFS_HD bool page_needs_writing(std::uint32_t frame_number) const {
    const std::uint32_t flags = page_dirt(fs_, frame_number).flags();
    return (flags & page_dirt::dirty) != 0 && (flags & page_dirt::cleaning) == 0;
  }

  GPUFS_HD bool is_dirty(std::uint32_t node) const {
    std::uint32_t count = 0;
    if (g_.is_leader()) count = fs_.node(node).dirty.load_acquire();
    return g_.broadcast(count) != 0;
  }

  template <class Act>
  GPUFS_HD void for_each_page(std::uint64_t version, std::uint32_t node, bool last,
                              std::uint64_t size, const Act& act) {
    if (!is_dirty(node)) return;
    const std::uint64_t pages = (size + fs_.layout.page_bytes() - 1) >> fs_.layout.page_shift;
    // Past the file's end, only pages that were written during a truncation can be dirty.
    for (std::uint32_t pass = 0; pass < (last ? 2u : 1u); ++pass) {
      if (pass != 0 && !is_dirty(node)) return;
      for (std::uint64_t kind = 0; kind <= once_bit; kind += once_bit) {
        bool on = true;
        const std::uint64_t first = pass == 0 ? 0 : pages,
                            end = pass == 0 ? pages : ~std::uint64_t{0};
        for_each_resident(version | kind, first, end, pages_asked::dirty,
                          [&](std::uint32_t frame_number) {
                            const slot_key key = key_of(frame_number);
                            if (key.high != (version | kind)) return true;
                            on = act(frame_number, key);
                            return on;
                          });
        if (!on) return;
      }
    }
  }

  // Starts at the front of the ring, which is evicted next.
  GPUFS_HD static std::uint64_t place_to_look(const slot_ring& ring) {
    const std::uint64_t next = ring.next.load_relaxed(), seen = ring.clean.load_relaxed();
    return seen < next || seen >= next + ring.count ? next : seen;
  }

  static constexpr std::uint64_t evicting_ns = 20'000'000;
  // Whether the frame no longer holds the page.
  GPUFS_HD bool evict(std::uint32_t frame_number, const slot_key& key) {
    const slot_phase phase = slot_state::phase(header(frame_number).state.load());
    if (phase != slot_phase::resident || !(header(frame_number).key() == key)) return true;
    if (!frame_table(fs_).claim_resident(frame_number)) return false;
    header(frame_number).state.release();
    return true;
  }

  // Repeats until this group has tried to write the page, or the page is clean: another group's
  // write may have failed.
  GPUFS_HD std::int32_t write_page(std::uint32_t frame_number, const slot_key& key) {
    attempt a{};
    for (std::uint32_t n = 0;; ++n) {
      wait_for_cleaner(frame_number);
      a = write_around(frame_number, key);
      if (a.took || !needs_writing(frame_number, key)) return a.error;
      // Another group was first, or a truncation or a load of the page is under way. Each ends.
      if ((key.high & once_bit) != 0) wait_for_fetch(key);
      if (n != 0) platform::pause(n);
    }
  }
  // Waits until no group is fetching the page of which the caller has the page of O_GWRONCE.
  // Collective. The caller must not hold a page that it is cleaning.
  GPUFS_HD void wait_for_fetch(const slot_key& key) const {
    if (g_.is_leader()) {
      const lookup_result r = index().lookup({key.high & ~once_bit, key.low});
      if (r.what == lookup_result::kind::resident) frame_table(fs_).unpin(r.slot);
    }
    g_.sync();
  }
  // Writes the page and its dirty neighbours, if it is dirty and no other group is cleaning it.
  // Collective.
  GPUFS_HD attempt write_around(std::uint32_t frame_number, const slot_key& key) {
    dirty_run<Group> r(fs_, g_);
    r.take_around(frame_number, key);
    return write(r);
  }
  // As write_around(), for the longest run in the page's stretch, if it is long enough.
  GPUFS_HD attempt write_longest(std::uint32_t frame_number, const slot_key& key,
                                 std::uint32_t least) {
    dirty_run<Group> r(fs_, g_);
    r.take_longest(frame_number, key, least);
    contended_ = contended_ || r.contended();
    return write(r);
  }

  std::uint32_t part_ = 0, parts_ = 1;
};

// write_back::flush_part(), called by any group. All whole warps of a block share the pages.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE void flush_pages(const mount_ref& fs, const Group g,
                                            std::uint64_t version, std::uint32_t node,
                                            std::uint64_t first, std::uint64_t end) {
  if constexpr (Group::has_warps) {
    const auto warp = g.warp();
    const std::uint32_t parts = g.size() < 32 ? 1 : g.size() / 32;
    if (g.warp_rank() < parts)
      write_back(fs, warp).flush_part(version, node, first, end, g.warp_rank(), parts);
    g.sync();
  } else {
    write_back(fs, g).flush_part(version, node, first, end, 0, 1);
  }
}

// write_back::flush(), called by any group. All whole warps of a block share the pages. Returns
// -EIO also when no page is dirty, but a write or truncation without an answer may still take
// effect.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t flush_file(const mount_ref& fs, const Group g,
                                                   std::uint64_t version, std::uint32_t node,
                                                   bool last) {
  const std::uint64_t size = file_size(fs, g, node);
  std::int32_t error = 0;
  if constexpr (Group::has_warps) {
    const auto warp = g.warp();
    const std::uint32_t parts = g.size() < 32 ? 1 : g.size() / 32;
    if (g.warp_rank() < parts)
      error = write_back(fs, warp).flush(version, node, last, size, g.warp_rank(), parts);
    // Of several errors, the one with the smallest number.
    const std::uint64_t least =
        g.least(error == 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(-error));
    error = least == ~std::uint64_t{0} ? 0 : -static_cast<std::int32_t>(least);
  } else {
    error = write_back(fs, g).flush(version, node, last, size);
  }
  if (error != 0) return error;
  if (g.is_leader()) error = is_settled(fs, node, version, true) ? 0 : -EIO;
  return g.broadcast(error);
}

}  // namespace gpufs::detail

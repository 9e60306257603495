// Writing dirty pages back to their files: for whoever needs a frame, ahead of that need, and for those who sync or close.
//
// A group takes the dirty pages of a run of the file, as many as a staging slot holds, copies their bytes and masks there, has the
// host write them, and waits for the answer: then the file has them, whoever reads it. (cache/dirty.cuh has what goes on for a
// page.) All pages stay in the cache, and pinned as long as they are under way, so that nobody loads what the file does not
// have yet.
//
// Progress: a group takes pages without waiting, and while it has some it waits only for a channel slot and for the host; both
// end by themselves. Who waits for another's write-back (flush) holds none of its own.
#pragma once

#include "gpufs/cache/dirty.cuh"

namespace gpufs::detail {

// By one warp, or one thread.
template <class Group>
class write_back {
  static_assert(!Group::has_warps, "by one warp of a block");

 public:
  GPUFS_HD write_back(const mount_ref& fs, const Group& g) : fs_(fs), g_(g) {}

  // All dirty pages of a version, and those that others are writing back: when it returns the file has them. 0, or the first
  // error, then some are dirty still; it is for the caller to tell, and not kept for others. Through an open file of the caller's,
  // `handle`. `last`: nobody else has it open, so all is looked through. Of `parts` warps that do it together each has its part.
  // Collective. Waits for the host; ends when it does not answer.
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t flush(std::uint64_t version, std::uint32_t node, std::uint32_t handle,
                                                bool last, std::uint32_t part = 0, std::uint32_t parts = 1) {
    std::int32_t error = 0;
    handle_ = handle;
    keeps_errors_ = false;
    part_ = part;
    parts_ = parts;
    for_each_page(version, node, last, [&](std::uint32_t frame_number, const slot_key& key) {
      const std::int32_t result = write_page(frame_number, key);
      if (error == 0) error = result;
      return !gave_up_ && is_dirty(node);
    });
    return error;
  }

  // The same of one page, which the caller has pinned.
  GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t flush_page(std::uint32_t frame_number) {
    keeps_errors_ = false;
    return write_page(frame_number, key_of(frame_number));
  }

  // What is dirty in the cache of a file that nobody has open any more, and could not be written: it is given up, with its
  // pages. Only what was written through this record. Collective.
  GPUFS_HD GPUFS_OUT_OF_LINE void discard(std::uint64_t version, std::uint32_t node, std::uint32_t record) {
    for_each_page(version, node, true, [&](std::uint32_t frame_number, const slot_key& key) {
      std::uint32_t is_its = 0;
      if (g_.is_leader()) is_its = page_dirt(fs_, frame_number).record() == record ? 1 : 0;
      if (g_.broadcast(is_its) != 0 && begin_after_others(frame_number, key) != 0) {
        forget_mask(frame_number);
        if (g_.is_leader()) {
          end(frame_number, node, 0);
          // As the file does not have these bytes, the page must not be found any more.
          evict(frame_number);
        }
      }
      return is_dirty(node);
    });
  }

  // Which pages are written back: any that are dirty; or only stretches all of which is, so that what is being written from front
  // to back goes in large pieces, and not in those that happened to be there.
  enum class choice : std::uint32_t { whole_stretches, any };

  // A stretch with dirty pages of a ring: one of those that would be evicted first. Whether it was written; errors are kept for those
  // who sync. Collective. Waits for the host.
  GPUFS_HD GPUFS_OUT_OF_LINE bool some(std::uint32_t ring_number, choice which) {
    slot_ring& ring = fs_.at<slot_ring>(fs_.layout.rings)[ring_number];
    constexpr std::uint32_t visits = 32;
    struct {
      std::uint64_t seen, from;
    } at{0, 0};
    if (g_.is_leader()) at = {ring.clean.load_relaxed(), place_to_look(ring)};
    at = g_.broadcast(at);
    bool done = false;
    std::uint32_t looked = 0;
    for (; looked < visits && looked < ring.count && !done; looked += done ? 0 : g_.size()) {
      const std::uint32_t mine = ring.slot_at(at.from + looked + g_.rank());
      bool found = page_needs_writing(mine);
      while (!done) {
        const std::uint32_t next = g_.leading(!found);
        if (next == g_.size()) break;
        const attempt a = write_stretch(key_of(g_.from(mine, next)), which);
        done = a.took && (a.error == 0 || gave_up_);
        if (done) looked += next + 1;
        found = found && g_.rank() != next && page_needs_writing(mine);
      }
    }
    // Not tried again: whoever was faster has looked there too.
    if (g_.is_leader()) (void)ring.clean.compare_exchange_relaxed(at.seen, at.from + looked);
    return done && !gave_up_;
  }
  // Whether the host did not answer.
  GPUFS_HD bool gave_up() const { return gave_up_; }

  // The same, if much of the ring is dirty: so that who needs a frame finds one. Collective. Waits for the host, if so.
  GPUFS_HD GPUFS_OUT_OF_LINE void ahead(std::uint32_t ring_number) {
    const slot_ring& ring = fs_.at<slot_ring>(fs_.layout.rings)[ring_number];
    std::uint32_t quarters = 0;
    if (g_.is_leader()) quarters = ring.dirty.load_relaxed() / (ring.count / 4 + 1);
    quarters = g_.broadcast(quarters);
    if (quarters != 0) (void)some(ring_number, quarters >= 3 ? choice::any : choice::whole_stretches);
  }

  // Calls `act(frame, key)`, collectively, for each page of the version that is in the cache from `first` on, until it says
  // false. Pages that come or go meanwhile may be met or not.
  template <class Act>
  GPUFS_HD void for_each_resident(std::uint64_t version, std::uint64_t first, std::uint64_t end, const Act& act) {
    const bool by_key = end - first <= fs_.layout.frame_count / 4;
    const std::uint64_t count = by_key ? end - first : fs_.layout.frame_count;
    for (std::uint64_t i = std::uint64_t{part_} * g_.size(); i < count; i += std::uint64_t{parts_} * g_.size()) {
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
        const std::uint32_t next = g_.leading(!found);
        if (next == g_.size()) break;
        const std::uint32_t frame_number = g_.from(mine, next);
        if (g_.rank() == next) found = false;
        if (!act(frame_number)) return;
      }
    }
  }

  // The same when other groups have done with it: 0 only when nothing of it is dirty. Collective; waits for them.
  GPUFS_HD std::uint32_t begin_after_others(std::uint32_t frame_number, const slot_key& key) {
    for (;;) {
      wait_for_cleaner(frame_number);
      struct {
        std::uint32_t what, again;
      } t{0, 0};
      if (g_.is_leader()) {
        t.what = begin(frame_number, key);
        t.again = t.what == 0 && (page_dirt(fs_, frame_number).flags() & page_dirt::cleaning) != 0 ? 1 : 0;
      }
      t = g_.broadcast(t);
      if (t.again == 0) return t.what;
    }
  }

  // Takes a page for changes to what is dirty of it, which it returns; 0 when there is nothing, or another group is at it: then
  // nothing is held. By the leader.
  GPUFS_HD std::uint32_t begin(std::uint32_t frame_number, const slot_key& key) {
    slot_state& state = header(frame_number).state;
    const bool there = slot_state::phase(state.pin()) == slot_phase::resident && header(frame_number).key() == key;
    std::uint32_t what = 0;
    if (there && page_dirt(fs_, frame_number).begin_cleaning(what)) return what;
    (void)state.unpin();
    return 0;
  }
  // `left`: what is dirty of it still, 0 for nothing. By the leader.
  GPUFS_HD void end(std::uint32_t frame_number, std::uint32_t node, std::uint32_t left) {
    page_dirt dirt(fs_, frame_number);
    if (left == 0) dirt.end_cleaning(node);
    else dirt.fail_cleaning(node, left);
    (void)header(frame_number).state.unpin();
  }
  // Collective.
  GPUFS_HD void forget_mask(std::uint32_t frame_number) {
    atomic_word<std::uint64_t>* const mask = fs_.mask(frame_number);
    for (std::uint64_t w = g_.rank(); w < mask_words(fs_.layout.page_bytes()); w += g_.size())
      (void)mask[w].exchange_acq_rel(0);
    g_.sync();
  }
  // Until no other group is writing the page back. Collective; the caller holds no page that it takes part in cleaning.
  GPUFS_HD void wait_for_cleaner(std::uint32_t frame_number) {
    if (g_.is_leader()) {
      const page_dirt dirt(fs_, frame_number);
      for (std::uint32_t attempt = 0; (dirt.flags() & page_dirt::cleaning) != 0; ++attempt) platform::pause(attempt);
    }
    g_.sync();
  }

 private:
  static constexpr std::uint32_t run_max = 32;

  GPUFS_HD slot_header& header(std::uint32_t frame_number) const { return frame_table(fs_).header(frame_number); }
  // Equal in all members.
  GPUFS_HD slot_key key_of(std::uint32_t frame_number) const { return g_.broadcast(header(frame_number).key()); }
  GPUFS_HD hash_index<frame_table> index() const { return frame_table(fs_).index(); }

  // Where the page is now, if it is there. By one thread.
  GPUFS_HD bool look_up(const slot_key& key, std::uint32_t& frame_number) const {
    const pinned_slot there = index().find_and_pin(key);
    if (!there.found) return false;
    frame_table(fs_).unpin(there.slot);
    frame_number = there.slot;
    return true;
  }

  // Whether it is the page still, and is dirty or being written. Collective.
  GPUFS_HD bool needs_writing(std::uint32_t frame_number, const slot_key& key) const {
    std::uint32_t yes = 0;
    if (g_.is_leader()) {
      constexpr std::uint32_t either = page_dirt::dirty | page_dirt::cleaning;
      yes = (page_dirt(fs_, frame_number).flags() & either) != 0 && header(frame_number).key() == key ? 1 : 0;
    }
    return g_.broadcast(yes) != 0;
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
  GPUFS_HD void for_each_page(std::uint64_t version, std::uint32_t node, bool last, const Act& act) {
    if (!is_dirty(node)) return;
    struct {
      std::uint64_t size;
    } file{fs_.node(node).size.load_acquire()};
    file = g_.broadcast(file);
    const std::uint64_t pages = (file.size + fs_.layout.page_bytes() - 1) >> fs_.layout.page_shift;
    // Behind the file's end only what was written at the moment it was cut.
    for (std::uint32_t pass = 0; pass < (last ? 2u : 1u); ++pass) {
      if (pass != 0 && !is_dirty(node)) return;
      for (std::uint64_t kind = 0; kind <= once_bit; kind += once_bit) {
        bool on = true;
        for_each_resident(version | kind, 0, pass == 0 ? pages : ~std::uint64_t{0}, [&](std::uint32_t frame_number) {
          const slot_key key = key_of(frame_number);
          if (key.high != (version | kind)) return true;
          on = act(frame_number, key);
          return on;
        });
        if (!on) return;
      }
    }
  }

  // From the front of the ring on, which is what is evicted next.
  GPUFS_HD static std::uint64_t place_to_look(const slot_ring& ring) {
    const std::uint64_t next = ring.next.load_relaxed(), seen = ring.clean.load_relaxed();
    return seen < next || seen >= next + ring.count ? next : seen;
  }

  GPUFS_HD void evict(std::uint32_t frame_number) {
    if (frame_table(fs_).claim_resident(frame_number)) header(frame_number).state.release();
  }

  // Pages of one file that follow each other; taken. In the leader, but for the first two, which all members know.
  struct run {
    std::uint32_t count;
    std::uint32_t masked;  // whether one of them is not dirty as a whole
    std::uint32_t node;
    std::uint32_t handle;
    std::uint64_t first;  // number of its first page in the file
    std::uint32_t frames[run_max];
    std::uint32_t what[run_max];
  };

  struct attempt {
    bool took;
    std::int32_t error;
  };
  // Until it was written by us, or is clean: another group's write may have failed.
  GPUFS_HD std::int32_t write_page(std::uint32_t frame_number, const slot_key& key) {
    attempt a{};
    do {
      wait_for_cleaner(frame_number);
      a = write_around(frame_number, key);
    } while (!a.took && needs_writing(frame_number, key));
    return a.error;
  }
  // Writes the page, if it is dirty and no other group is at it, and its dirty neighbours with it. Collective.
  GPUFS_HD attempt write_around(std::uint32_t frame_number, const slot_key& key) {
    run r{};
    if (g_.is_leader()) take(r, frame_number, key);
    return write(r);
  }
  // The same of any dirty pages near it, if no other group is at them.
  GPUFS_HD attempt write_stretch(const slot_key& key, choice which) {
    std::uint32_t all = 1;
    if (which == choice::whole_stretches) all = is_whole_stretch(key) ? 1 : 0;
    if (all == 0) return {false, 0};
    run r{};
    if (g_.is_leader()) take_stretch(r, key);
    return write(r);
  }
  GPUFS_HD attempt write(run& r) {
    r.count = g_.broadcast(r.count);
    if (r.count == 0) return {false, 0};
    r.masked = g_.broadcast(r.masked);
    std::int32_t turn = 0;
    if (g_.is_leader()) turn = fs_.node(r.node).lost.load_relaxed() != 0 ? -EIO : fs_.client().acquire();
    turn = g_.broadcast(turn);
    std::int32_t error = turn < 0 ? turn : 0;
    if (turn < 0) gave_up_ = true;
    if (error == 0) {
      // A page larger than a staging slot goes in several turns.
      const std::uint64_t bytes = std::uint64_t{r.count} << fs_.layout.page_shift;
      const std::uint64_t room = r.masked != 0 ? masked_room() : fs_.channel.layout.staging_bytes;
      for (std::uint64_t done = 0; done < bytes && error == 0;) {
        const std::uint64_t piece = bytes - done < room ? bytes - done : room;
        error = write_piece(r, static_cast<std::uint32_t>(turn), done, piece);
        done += piece;
        // A slot whose answer never came is not ours any more.
        if (error == no_answer) {
          turn = -1;
          gave_up_ = true;
        }
      }
      if (g_.is_leader() && turn >= 0) fs_.client().release(static_cast<std::uint32_t>(turn));
    }
    if (error == no_answer) error = -EIO;
    if (g_.is_leader()) finish(r, error);
    g_.sync();
    return {true, error};
  }

  // As many bytes as fit into a slot with their mask: whole pages, or a part of one.
  GPUFS_HD std::uint64_t masked_room() const {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const std::uint64_t fit = fs_.channel.layout.staging_bytes / 9 * 8 / 512 * 512;
    return fit >= page_bytes ? fit / page_bytes * page_bytes : fit;
  }
  // Pages that are written together, a power of two: as many as fit into a slot.
  GPUFS_HD std::uint64_t pages_at_once() const {
    const std::uint64_t fit = fs_.channel.layout.staging_bytes >> fs_.layout.page_shift;
    return fit == 0 ? 1 : fit < run_max ? fit : run_max;
  }

  // The page, and those before and behind it, in the stretch of as many as fit, as far as they are dirty.
  GPUFS_HD void take(run& r, std::uint32_t frame_number, const slot_key& key) {
    if (!add(r, frame_number, key)) return;
    r.first = key.low;
    const std::uint64_t begin = key.low & ~(pages_at_once() - 1);
    while (r.first > begin && add_if_there(r, {key.high, r.first - 1})) --r.first;
    for (std::uint32_t i = 0, k = r.count - 1; i < k; ++i, --k) {
      swap(r.frames[i], r.frames[k]);
      swap(r.what[i], r.what[k]);
    }
    extend(r, key.high, key.low + 1, begin + pages_at_once());
  }
  // The dirty pages of the stretch that a page is in, from the first one on; none if another group is at them. Of many groups that
  // meet pages of one stretch at the same time, as when they all write a file, one takes it whole: they try for the same
  // page first.
  GPUFS_HD void take_stretch(run& r, const slot_key& key) {
    const std::uint64_t begin = key.low & ~(pages_at_once() - 1);
    const std::uint64_t end = begin + pages_at_once();
    for (r.first = begin; r.first < end; ++r.first) {
      std::uint32_t f = 0;
      if (!look_up({key.high, r.first}, f)) continue;
      const std::uint32_t flags = page_dirt(fs_, f).flags();
      if ((flags & page_dirt::cleaning) != 0) return;
      if ((flags & page_dirt::dirty) == 0) continue;
      if (add(r, f, {key.high, r.first})) extend(r, key.high, r.first + 1, end);
      return;
    }
  }
  // Collective.
  GPUFS_HD bool is_whole_stretch(const slot_key& key) const {
    const std::uint64_t begin = key.low & ~(pages_at_once() - 1);
    bool all = true;
    for (std::uint64_t i = g_.rank(); i < pages_at_once(); i += g_.size()) {
      std::uint32_t f = 0;
      constexpr std::uint32_t wanted = page_dirt::dirty | page_dirt::whole;
      all = all && look_up({key.high, begin + i}, f) &&
            (page_dirt(fs_, f).flags() & (wanted | page_dirt::cleaning)) == wanted;
    }
    return g_.all(all);
  }
  GPUFS_HD void extend(run& r, std::uint64_t version, std::uint64_t next, std::uint64_t end) {
    while (next < end && add_if_there(r, {version, next})) ++next;
    const page_dirt dirt(fs_, r.frames[0]);
    r.node = dirt.node();
    r.handle = handle_ != 0 ? handle_ : dirt.handle();
  }
  GPUFS_HD bool add(run& r, std::uint32_t frame_number, const slot_key& key) {
    const std::uint32_t what = begin(frame_number, key);
    if (what == 0) return false;
    if ((what & page_dirt::whole) == 0) r.masked = 1;
    r.frames[r.count] = frame_number;
    r.what[r.count] = what;
    ++r.count;
    return true;
  }
  GPUFS_HD bool add_if_there(run& r, const slot_key& key) {
    std::uint32_t f = 0;
    return look_up(key, f) && page_needs_writing(f) && add(r, f, key);
  }
  GPUFS_HD static void swap(std::uint32_t& a, std::uint32_t& b) {
    const std::uint32_t c = a;
    a = b;
    b = c;
  }

  static constexpr std::int32_t no_answer = -0x7fffffff;

  // Bytes [done, done + bytes) of the run. Collective. 0, -errno, or `no_answer`: then the slot is abandoned.
  GPUFS_HD std::int32_t write_piece(run& r, std::uint32_t slot, std::uint64_t done, std::uint64_t bytes) {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const std::uint32_t shift = fs_.layout.page_shift;
    char* const staging = fs_.channel.staging(slot);
    auto* const mask_there = reinterpret_cast<std::uint64_t*>(staging + mask_offset(bytes));
    std::uint64_t dirty_bits = 0;
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t n = bytes - at < page_bytes ? bytes - at : page_bytes;
      const std::uint64_t within = (done + at) & (page_bytes - 1);
      const auto i = static_cast<std::uint32_t>((done + at) >> shift);
      const std::uint32_t frame_number = g_.broadcast(r.frames[i]);
      const std::uint32_t what = g_.broadcast(r.what[i]);
      const bool whole = (what & page_dirt::whole) != 0, partial = (what & page_dirt::partial) != 0;
      atomic_word<std::uint64_t>* const mask = fs_.mask(frame_number) + within / 64;
      // The mask first: bytes are read behind it.
      for (std::uint64_t w = g_.rank(); w < mask_words(n); w += g_.size()) {
        std::uint64_t bits = partial ? mask[w].exchange_acq_rel(0) : 0;
        if (whole) bits = page_dirt::bits(w, 0, n);
        if (r.masked != 0) mask_there[at / 64 + w] = bits;
        dirty_bits |= bits;
      }
      g_.sync();
      copy_out_of_page(g_, staging + at, fs_.page(frame_number) + within, n);
      at += n;
    }
    g_.sync();
    if (g_.all(dirty_bits == 0)) return 0;  // dirty for nothing
    std::int32_t result = 0;
    if (g_.is_leader()) result = post(r, slot, done, bytes);
    result = g_.broadcast(result);
    if (result >= 0) return 0;
    if (r.masked != 0) restore_mask(r, mask_there, done, bytes);
    if (result == no_answer && g_.is_leader()) {
      fs_.node(r.node).lost.store_relaxed(1);
      fs_.client().abandon(slot);
    }
    return result;
  }

  GPUFS_HD std::int32_t post(const run& r, std::uint32_t slot, std::uint64_t done, std::uint64_t bytes) {
    const std::uint64_t offset = (r.first << fs_.layout.page_shift) + done;
    // Before it is there: who misses one of these pages must ask the host.
    fs_.node(r.node).stored.raise_release(offset + bytes);
    channel_client client = fs_.client();
    const std::uint32_t length = static_cast<std::uint32_t>(bytes) | (r.masked != 0 ? masked_flag : 0u);
    const request asked{request_code::write, r.handle, length, offset};
    client.post(slot, asked);
    const channel_client::answer answer = client.wait(slot, true);
    if (answer.abandoned) return no_answer;
    if (answer.result >= 0) {
      const std::uint64_t pages = bytes >> fs_.layout.page_shift;
      fs_.counters().add(counter::write_backs, pages == 0 ? 1 : pages);
      fs_.counters().add(counter::write_back_bytes, static_cast<std::uint64_t>(answer.result));
    }
    return answer.result;
  }

  // Bits that were taken, and not written.
  GPUFS_HD void restore_mask(run& r, const std::uint64_t* mask_there, std::uint64_t done, std::uint64_t bytes) {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t n = bytes - at < page_bytes ? bytes - at : page_bytes;
      const std::uint64_t within = (done + at) & (page_bytes - 1);
      const auto i = static_cast<std::uint32_t>((done + at) >> fs_.layout.page_shift);
      const std::uint32_t frame_number = g_.broadcast(r.frames[i]);
      // The flag says all of a whole page; bits that are left behind would be written with the next byte of it.
      const bool whole = (g_.broadcast(r.what[i]) & page_dirt::whole) != 0;
      for (std::uint64_t w = g_.rank(); w < mask_words(n); w += g_.size()) {
        const std::uint64_t bits = mask_there[at / 64 + w];
        if (bits != 0 && !whole) (void)fs_.mask(frame_number)[within / 64 + w].fetch_or_acq_rel(bits);
      }
      at += n;
    }
    g_.sync();
  }

  GPUFS_HD void finish(const run& r, std::int32_t error) {
    // First the error: when the pages are let go the file may be closed, and its node another file's.
    if (error != 0) {
      fs_.counters().add(counter::write_back_errors);
      std::int32_t none = 0;
      if (keeps_errors_) (void)fs_.node(r.node).error.compare_exchange_relaxed(none, error);
    }
    for (std::uint32_t i = 0; i < r.count; ++i) end(r.frames[i], r.node, error == 0 ? 0 : r.what[i]);
    if (error != 0) GPUFS_SCHEDULE_POINT("write_back.failed");
  }

  const mount_ref& fs_;
  const Group g_;
  std::uint32_t part_ = 0, parts_ = 1;
  std::uint32_t handle_ = 0;  // of an open file of the caller's; 0: each page's own
  bool gave_up_ = false;
  bool keeps_errors_ = true;  // for those who sync; nobody else would tell them
};

// By any group: write_back::flush(), by all warps of a block.
template <class Group>
GPUFS_HD GPUFS_OUT_OF_LINE std::int32_t flush_file(const mount_ref& fs, const Group g, std::uint64_t version,
                                                   std::uint32_t node, std::uint32_t handle, bool last) {
  if constexpr (Group::has_warps) {
    const auto warp = g.warp();
    const std::int32_t error = write_back(fs, warp).flush(version, node, handle, last, g.warp_rank(), g.warp_count());
    // Of several errors the least number.
    const std::uint64_t least = g.least(error == 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(-error));
    return least == ~std::uint64_t{0} ? 0 : -static_cast<std::int32_t>(least);
  } else {
    return write_back(fs, g).flush(version, node, handle, last);
  }
}

}  // namespace gpufs::detail

// The write of a run of dirty pages (cache/dirty_run.cuh) to its file. A group copies the run's
// bytes and masks into the staging memory of a channel slot, posts the request, and waits for the
// answer. write_back.cuh chooses the runs.
#pragma once

#include "gpufs/cache/dirty_run.cuh"
#include "gpufs/cache/inode_state.cuh"

namespace gpufs::detail {

// A part of write_back. Called by one warp, or by one thread.
template <class Group>
class run_writer {
 public:
  // Takes a channel slot, wide if possible. A group takes it before it takes pages that other
  // groups made dirty. So a group that waits for a channel slot holds no page, and finds whole
  // stretches once it has the slot. Returns false when there is none; with `waits`, that means that
  // the host does not answer. The caller gives it back with give_slot_back(). Collective.
  [[nodiscard]] GPUFS_HD bool take_slot(bool waits) {
    get_slot(true, waits);
    return channel_slot_ >= 0;
  }
  GPUFS_HD void give_slot_back() {
    if (g_.is_leader() && channel_slot_ >= 0)
      fs_.client().release(static_cast<std::uint32_t>(channel_slot_));
    channel_slot_ = -1;
  }

  // Whether the host did not answer.
  GPUFS_HD bool gave_up() const { return gave_up_; }
  // Whether other groups were writing back pages that this one looked at.
  GPUFS_HD bool contended() const { return contended_; }

 protected:
  GPUFS_HD run_writer(const mount_ref& fs, const Group& g) : fs_(fs), g_(g) {}

  struct attempt {
    bool took;
    std::int32_t error;
  };
  // Writes the run and releases its pages. `took` is false, and nothing is written, when the run is
  // empty or a truncation of the file is under way. It is also false when some pages stay dirty
  // because another group loads them (update_fetched()). Collective. Waits for the host.
  GPUFS_HD GPUFS_OUT_OF_LINE attempt write(dirty_run<Group>& r) {
    if (r.count() == 0) return {false, 0};
    const std::uint64_t bytes = std::uint64_t{r.count()} << fs_.layout.page_shift;
    enum class state : std::uint32_t { writable, truncated_now, unsettled } now = state::writable;
    if (g_.is_leader()) {
      // Both orders: pairs with the truncation's change of `cuts`. Either the truncation finds the
      // taken pages and waits for them, or this load sees the truncation.
      if ((fs_.node(r.node()).cuts.fetch_add_acq_rel(0) & 1) != 0) now = state::truncated_now;
      // A group that syncs or closes waits; other groups check once.
      else if (!is_settled(fs_, r.node(), r.version(), !keeps_errors_)) now = state::unsettled;
    }
    now = g_.broadcast(now);
    if (now == state::truncated_now) {
      contended_ = true;
      r.give_back();
      return {false, 0};
    }
    const bool had_slot = channel_slot_ >= 0;
    if (now == state::writable && !had_slot)
      get_slot(bytes > fs_.channel.layout.staging_bytes, true);
    std::int32_t error = now != state::writable || channel_slot_ < 0 ? -EIO : 0;
    if (error != 0) gave_up_ = true;
    if (error == 0) {
      const auto channel_slot = static_cast<std::uint32_t>(channel_slot_);
      // A run larger than the slot's staging memory is written in several pieces.
      const std::uint64_t room = room_for(r, fs_.channel.layout.write_bytes(channel_slot));
      for (std::uint64_t done = 0; done < bytes && error == 0;) {
        const std::uint64_t piece = bytes - done < room ? bytes - done : room;
        error = write_piece(r, channel_slot, done, piece);
        done += piece;
        // The channel slot is abandoned, so it is not this group's any more.
        if (error == no_answer) {
          channel_slot_ = -1;
          gave_up_ = true;
        }
      }
    }
    if (!had_slot) give_slot_back();
    if (error == no_answer) error = -EIO;
    if (g_.is_leader() && error != 0) {
      fs_.counters().add(counter::write_back_errors);
      if (keeps_errors_) keep_error(r.node(), error);
    }
    g_.sync();
    const bool took = error != 0 || !r.keeps_some_dirty();
    if (!took) contended_ = true;
    r.end(error == 0);
    if (error != 0) GPUFS_SCHEDULE_POINT("write_back.failed");
    return {took, error};
  }

  GPUFS_HD void get_slot(bool wide, bool waits) {
    std::int32_t channel_slot = 0;
    if (g_.is_leader())
      channel_slot = waits ? fs_.client().acquire(wide) : fs_.client().try_acquire(wide);
    channel_slot_ = g_.broadcast(channel_slot);
    if (waits && channel_slot_ < 0) gave_up_ = true;
  }

  // Keeps an error for the next sync or close. Called before the pages are released: after that the
  // file may be closed, and its inode state may be another file's.
  GPUFS_HD void keep_error(std::uint32_t node, std::int32_t error) {
    std::int32_t none = 0;
    (void)fs_.node(node).error.compare_exchange_relaxed(none, error);
  }

  // How many bytes of the run fit into `bytes`, with their mask if the run has one: whole pages, or
  // a part of one page.
  GPUFS_HD std::uint64_t room_for(const dirty_run<Group>& r, std::uint64_t bytes) const {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const std::uint64_t fit = r.masked() ? bytes / 9 * 8 / 512 * 512 : bytes;
    return fit >= page_bytes ? fit / page_bytes * page_bytes : fit;
  }

  static constexpr std::int32_t no_answer = -0x7fffffff;

  // Writes bytes [done, done + bytes) of the run. Collective. Returns 0, -errno, or `no_answer`;
  // then the channel slot is abandoned.
  GPUFS_HD std::int32_t write_piece(dirty_run<Group>& r, std::uint32_t channel_slot,
                                    std::uint64_t done, std::uint64_t bytes) {
    char* const staging = fs_.channel.write_staging(channel_slot);
    auto* const mask_there = reinterpret_cast<std::uint64_t*>(staging + mask_offset(bytes));
    std::uint64_t dirty_bits = 0;
    std::uint64_t mapped_before = 0;
    if (g_.is_leader()) mapped_before = pages_mapped(fs_);
    g_.sync();
    for_each_part(r, done, bytes, [&](const part& p) {
      const bool whole = (p.what & page_dirt::whole) != 0,
                 partial = (p.what & page_dirt::partial) != 0;
      atomic_word<std::uint64_t>* const mask = fs_.mask(p.frame) + p.within / 64;
      // Takes the mask before it reads the bytes (cache/dirty.cuh).
      for (std::uint64_t w = g_.rank(); w < mask_words(p.bytes); w += g_.size()) {
        std::uint64_t bits = partial ? mask[w].exchange_acq_rel(0) : 0;
        if (whole) bits = page_dirt::bits(w, 0, p.bytes);
        if (r.masked()) mask_there[p.at / 64 + w] = bits;
        dirty_bits |= bits;
      }
      g_.sync();
      copy_out_of_page(g_, staging + p.at, fs_.page(p.frame) + p.within, p.bytes);
    });
    g_.sync();
    if (g_.all(dirty_bits == 0)) return 0;  // The pages were marked dirty without new bytes.
    GPUFS_SCHEDULE_POINT("write_back.read");
    update_twins(r, staging, mask_there, done, bytes, mapped_before);
    std::int32_t result = 0;
    if (g_.is_leader()) result = post(r, channel_slot, done, bytes);
    result = g_.broadcast(result);
    if (result >= 0) {
      if ((r.version() & once_bit) != 0) update_fetched(r, staging, mask_there, done, bytes);
      return 0;
    }
    if (r.masked()) restore_mask(r, mask_there, done, bytes);
    if (result == no_answer && g_.is_leader()) {
      fs_.client().abandon(channel_slot);
      // Release: pairs with the acquire in is_unsettled_now(). Without it a reader of `timed_out`
      // could miss that the channel slot is abandoned.
      if (begun_) (void)fs_.node(r.node()).timed_out.fetch_add_release(1);
    }
    return result;
  }

  // Twins of mapped pages get the bytes that are sent. A twin holds what the file has, so bytes
  // that differ from it are dirty. If the write fails, the mask still says that the bytes are
  // dirty.
  //
  // A byte may have been stored through a mapping after this group read the page. If it has the
  // value that the twin had, the mapping's group found no difference. So this group compares the
  // page with what it sends, after it has updated the twin, and marks what differs: also if the
  // mapping has ended since. `mapped_before`: pages_mapped() from before the page was read.
  GPUFS_HD GPUFS_OUT_OF_LINE void update_twins(const dirty_run<Group>& r, const char* staging,
                                               const std::uint64_t* mask_there, std::uint64_t done,
                                               std::uint64_t bytes, std::uint64_t mapped_before) {
    std::uint32_t mapped = 0;
    if (g_.is_leader()) mapped = were_pages_mapped(mapped_before, pages_mapped(fs_)) ? 1 : 0;
    if (g_.broadcast(mapped) == 0) return;
    for_each_part(r, done, bytes, [&](const part& p) {
      change_twin(fs_, g_, p.frame,
                  [&](char* twin) { copy_sent(r, p, staging, mask_there, twin + p.within); });
    });
    if (!marks_again_) return;
    order_mapped_stores(fs_, g_);
    for_each_part(r, done, bytes, [&](const part& p) {
      bool any = false;
      for (std::uint64_t w = g_.rank(); w < mask_words(p.bytes); w += g_.size()) {
        std::uint64_t bits = sent_bits(r, p, mask_there, w);
        if (bits == 0) continue;
        bits &= differing_bytes(fs_.page(p.frame) + p.within + w * 64, staging + p.at + w * 64);
        if (bits == 0) continue;
        any = true;
        (void)fs_.mask(p.frame)[p.within / 64 + w].fetch_or_acq_rel(bits);
      }
      if (g_.all(!any)) return;
      g_.sync();
      if (g_.is_leader()) (void)page_dirt(fs_, p.frame).set(r.node(), page_dirt::partial);
    });
    g_.sync();
  }

  // Called after the host has written a piece of a run of O_GWRONCE. Other descriptors do not find
  // the run's pages, but pages that were fetched from the file, perhaps before this write. So the
  // sent bytes are copied into the fetched pages, and into the twins of those that are mapped for
  // writing, before the run's pages become clean. A sync or a close that finds no dirty page then
  // knows that all descriptors see the bytes. Other groups may read or write other bytes of a
  // fetched page meanwhile.
  //
  // * A page whose fetch begins after the lookup gets the bytes from the host.
  // * A page that is being fetched may get older bytes. Its group may wait for a channel slot, so
  //   this group, which holds a channel slot and pages, does not wait for it. The page of O_GWRONCE
  //   stays dirty, and is written again.
  GPUFS_HD GPUFS_OUT_OF_LINE void update_fetched(dirty_run<Group>& r, const char* staging,
                                                 const std::uint64_t* mask_there,
                                                 std::uint64_t done, std::uint64_t bytes) {
    std::uint32_t fetched = 0;
    // Acquire, after the host's answer: if a group has fetched older bytes, then this load sees
    // that the file was opened for that.
    if (g_.is_leader()) fetched = fs_.node(r.node()).may_fetch.load_acquire();
    if (g_.broadcast(fetched) == 0) return;
    const frame_table frames(fs_);
    for_each_part(r, done, bytes, [&](const part& p) {
      struct {
        std::uint32_t frame, found, loading;
      } there{0, 0, 0};
      if (g_.is_leader()) {
        const pinned_slot s =
            frames.index().find_and_pin({r.version() & ~once_bit, r.first_page() + p.page});
        there = {s.slot, s.found ? 1u : 0u, s.phase == slot_phase::loading ? 1u : 0u};
      }
      there = g_.broadcast(there);
      if (there.found == 0) return;
      GPUFS_SCHEDULE_POINT("once.update");
      if (there.loading != 0) {
        r.keep_dirty(p.page);
        restore_bits(r, p, mask_there);
      } else {
        copy_sent(r, p, staging, mask_there, fs_.page(there.frame) + p.within);
        // After the page: a group that finds them different marks bytes that were sent. The other
        // way round it would send old ones.
        g_.sync();
        std::uint32_t mapped = 0;
        if (g_.is_leader()) mapped = are_pages_mapped(fs_) ? 1 : 0;
        if (g_.broadcast(mapped) != 0) {
          change_twin(fs_, g_, there.frame,
                      [&](char* twin) { copy_sent(r, p, staging, mask_there, twin + p.within); });
        }
      }
      g_.sync();
      if (g_.is_leader()) frames.unpin(there.frame);
    });
    g_.sync();
  }

  GPUFS_HD std::int32_t post(const dirty_run<Group>& r, std::uint32_t channel_slot,
                             std::uint64_t done, std::uint64_t bytes) {
    const std::uint64_t offset = (r.first_page() << fs_.layout.page_shift) + done;
    // Before the host writes: a group that misses one of these pages must then ask the host.
    fs_.node(r.node()).stored.fetch_max_release(offset + bytes);
    channel_client client = fs_.client();
    const std::uint32_t length =
        static_cast<std::uint32_t>(bytes) | (r.masked() ? masked_flag : 0u);
    const request asked{request_code::write, node_name(r.node(), r.version()), length, offset};
    client.post(channel_slot, asked);
    const channel_client::answer answer = client.wait(channel_slot, true);
    begun_ = answer.begun;
    if (answer.abandoned) return no_answer;
    if (answer.result >= 0) {
      const std::uint64_t pages = bytes >> fs_.layout.page_shift;
      fs_.counters().add(counter::write_backs, pages == 0 ? 1 : pages);
      fs_.counters().add(counter::write_back_bytes, static_cast<std::uint64_t>(answer.result));
    }
    return answer.result;
  }

  // Sets the bits again that were taken and not written.
  GPUFS_HD void restore_mask(const dirty_run<Group>& r, const std::uint64_t* mask_there,
                             std::uint64_t done, std::uint64_t bytes) {
    for_each_part(r, done, bytes, [&](const part& p) { restore_bits(r, p, mask_there); });
    g_.sync();
  }

  // The part of bytes [done, done + bytes) of a run that lies in one page: `bytes` bytes, at
  // `within` in page `page` of the run and at `at` in the piece.
  struct part {
    std::uint32_t frame;
    std::uint32_t what;
    std::uint32_t page;
    std::uint64_t at, within, bytes;
  };
  // Which bytes are sent of word `w` of a part.
  GPUFS_HD std::uint64_t sent_bits(const dirty_run<Group>& r, const part& p,
                                   const std::uint64_t* mask_there, std::uint64_t w) const {
    return r.masked() ? mask_there[p.at / 64 + w] : page_dirt::bits(w, 0, p.bytes);
  }
  // Copies what is sent of a part to `to`, the part's place in another page.
  GPUFS_HD void copy_sent(const dirty_run<Group>& r, const part& p, const char* staging,
                          const std::uint64_t* mask_there, char* to) const {
    for (std::uint64_t w = g_.rank(); w < mask_words(p.bytes); w += g_.size()) {
      const std::uint64_t bits = sent_bits(r, p, mask_there, w);
      const std::uint64_t step = bits == ~std::uint64_t{0} ? 64 : 1;
      for (std::uint64_t i = 0; i < 64; i += step) {
        if ((bits >> i & 1) == 0) continue;
        copy_into_page(this_thread(), to + w * 64 + i, staging + p.at + w * 64 + i, step);
      }
    }
  }
  GPUFS_HD void restore_bits(const dirty_run<Group>& r, const part& p,
                             const std::uint64_t* mask_there) {
    // For a whole page the flag says that all bytes are dirty. Leftover bits would be written
    // again with the page's next dirty byte.
    if (!r.masked() || (p.what & page_dirt::whole) != 0) return;
    for (std::uint64_t w = g_.rank(); w < mask_words(p.bytes); w += g_.size()) {
      const std::uint64_t bits = mask_there[p.at / 64 + w];
      if (bits != 0) (void)fs_.mask(p.frame)[p.within / 64 + w].fetch_or_acq_rel(bits);
    }
  }
  template <class Act>
  GPUFS_HD void for_each_part(const dirty_run<Group>& r, std::uint64_t done, std::uint64_t bytes,
                              const Act& act) {
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t n = bytes - at < page_bytes ? bytes - at : page_bytes;
      const auto i = static_cast<std::uint32_t>((done + at) >> fs_.layout.page_shift);
      const auto page = r.at(i);
      act(part{page.frame, page.what, i, at, (done + at) & (page_bytes - 1), n});
      at += n;
    }
  }

  const mount_ref& fs_;
  const Group g_;
  std::int32_t channel_slot_ = -1;  // The one that is held, or an error.
  // Other groups were cleaning stretches that this one looked at.
  bool contended_ = false;
  bool gave_up_ = false;
  // The write without an answer may still take effect. Valid in the leader.
  bool begun_ = false;
  // Keep errors for the next sync or close, because no caller reports them.
  bool keeps_errors_ = true;
  // Mark bytes again that a mapping changed meanwhile. Not at the last close: no mapping may be
  // left then, and nothing may be dirty afterwards.
  bool marks_again_ = true;
};

}  // namespace gpufs::detail

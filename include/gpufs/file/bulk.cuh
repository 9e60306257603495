// The bulk path: a run of absent pages gets consecutive frames, and the host has the copy engine fill them in one copy
// (design.md, "The GPU pulls pages"; GPUfs, ACM TOCS 32(1), section 5, copies single pages so).
//
// A group that has claimed a page, and will read what follows it, or seems to, begins a run behind that page:
//
//   take a channel slot -> take consecutive frames of one ring -> claim each and make it loading, findable
//     -> post -> (load its own page meanwhile) -> wait for the answer -> publish
//
// Whoever wants a page of the run meanwhile finds it loading, and waits for it as for any other load.
//
// Which pages seem to follow: those behind a stretch that is in the cache, or on its way into it, at least `least` pages
// long, when none of them is there yet (looked up in steps of powers of two). A reader at random leaves no such
// pattern. Only a page whose number is a multiple of `step` is looked at, so that others do not pay for it.
//
// Progress: as for a single page. A run holds unloaded frames while its group waits for the host, which waits for
// nobody's page; it begins only with a channel slot that was free, never waits for frames, and all runs together
// hold at most a quarter of the frames, and half of the slots: their groups may want another slot, for the page that each
// loads by itself. Pages that the answer does not cover stop loading without an error: their
// waiters look again, and load them one by one. When there is no answer the copy may still come, so the frames are
// never used again.
#pragma once

#include "gpufs/base/copy.cuh"
#include "gpufs/cache/extents.cuh"
#include "gpufs/cache/page_cache.cuh"

namespace gpufs::detail {

// What a load needs to know of an open file; equal in all members of the group.
struct file_view {
  std::uint64_t version;
  std::uint64_t size;
  std::uint32_t record;
  std::uint32_t handle;
};

// Tells the extent table what the answer to a read says of an extent, if it does. By the leader.
GPUFS_HD inline void take_notice(const mount_ref& fs, std::uint64_t version, std::uint32_t slot, std::int32_t result) {
  if (result < 0 || (result & notice_flag) == 0) return;
  const reply_record& reply = fs.channel.reply(slot);
  extent_table(fs).insert(version, reply.extent_number.load_relaxed(), reply.extent_address.load_relaxed(),
                          static_cast<std::uint32_t>(reply.extent_bytes.load_relaxed()));
}

// Pages under way. Equal in all members.
struct bulk_run {
  std::uint64_t page;   // the first
  std::uint32_t frame;  // its frame; the others follow
  std::uint32_t count;  // 0: no run
  std::uint32_t slot;   // of the channel
};

// Members are collective.
template <class Group>
class bulk_loader {
 public:
  // Whether a run may begin behind `page`; a quick look, before the calls below. `sure`: as many pages behind it as the
  // caller is about to read.
  GPUFS_HD static bool may_begin(const mount_ref& fs, std::uint64_t page, std::uint64_t sure) {
    const bulk_layout& bulk = fs.layout.bulk;
    if (bulk.most == 0) return false;
    return sure >= bulk.least || (page & (bulk.step - 1)) == 0;
  }

  // Begins a run behind `page`, which the caller has claimed. Does not wait.
  GPUFS_HD GPUFS_OUT_OF_LINE static bulk_run begin(const mount_ref& fs, const Group g, const file_view file,
                                                   std::uint64_t page, std::uint64_t sure) {
    return bulk_loader(fs, g, file).begin_behind(page, sure);
  }

  // Waits for a run, and publishes it.
  GPUFS_HD GPUFS_OUT_OF_LINE static void end(const mount_ref& fs, const Group g, const file_view file,
                                             const bulk_run run) {
    bulk_loader(fs, g, file).wait_and_publish(run);
  }

 private:
  using rings = ring_set<frame_table>;

  GPUFS_HD bulk_loader(const mount_ref& fs, const Group& g, const file_view& file)
      : fs_(fs), g_(g), file_(file), frames_(fs), index_(frames_.index()) {}

  GPUFS_HD rings frame_rings() const { return {fs_.at<slot_ring>(fs_.layout.rings), fs_.layout.ring_count, frames_}; }
  GPUFS_HD slot_key key_of(std::uint64_t page) const { return page_key{file_.version, page}.slot(); }
  GPUFS_HD bulk_state& shared() const { return *fs_.at<bulk_state>(fs_.layout.bulk_shared); }

  GPUFS_HD bulk_run begin_behind(std::uint64_t page, std::uint64_t sure) {
    bulk_run run{page + 1, 0, wanted_behind(page, sure), 0};
    if (run.count == 0) return run;
    take_resources(run);
    if (run.count == 0) return run;
    const std::uint32_t taken = run.count;
    claim(run);
    if (g_.is_leader()) {
      if (run.count < taken) give_back_frames(taken - run.count);
      if (run.count != 0) post(run);
      else give_back_slot(run);
    }
    return run;
  }

  // How many pages behind `page` to ask for; 0: none.
  GPUFS_HD std::uint32_t wanted_behind(std::uint64_t page, std::uint64_t sure) const {
    const bulk_layout& bulk = fs_.layout.bulk;
    const std::uint64_t first = page + 1;
    const std::uint32_t shift = fs_.layout.page_shift;
    const std::uint64_t file_end = (file_.size + fs_.layout.page_bytes() - 1) >> shift;
    const std::uint64_t extent_pages = std::uint64_t{1} << (fs_.layout.extent_shift - shift);
    const std::uint64_t extent_end = (first & ~(extent_pages - 1)) + extent_pages;
    // So that the page behind the run is one that may begin the next.
    std::uint64_t count = bulk.most - 1 - (page & (bulk.step - 1));
    const bool known = sure >= bulk.least;
    if (known && sure < count) count = sure;
    if (file_end - first < count) count = file_end - first;
    if (extent_end - first < count) count = extent_end - first;
    // (As unsigned: a page behind the end of the file is not asked for.)
    if (first >= file_end || count < bulk.least) return 0;
    return known || seems_sequential(page, static_cast<std::uint32_t>(count)) ? static_cast<std::uint32_t>(count) : 0;
  }

  // Members share the looking.
  GPUFS_HD bool seems_sequential(std::uint64_t page, std::uint32_t count) const {
    if (page < fs_.layout.bulk.least) return false;
    std::uint32_t behind = 1;  // steps of 1, 2, 4, ... up to `least`
    while ((1u << behind) <= fs_.layout.bulk.least) ++behind;
    std::uint32_t ahead = 1;  // steps of 1, 2, 4, ... up to `count`
    while ((1u << ahead) <= count) ++ahead;
    bool as_it_seems = true;
    for (std::uint32_t i = g_.rank(); i < behind + ahead; i += g_.size()) {
      const bool is_behind = i < behind;
      const std::uint64_t at = is_behind ? page - (std::uint64_t{1} << i) : page + (std::uint64_t{1} << (i - behind));
      // Guesses are enough: a wrong one costs a run, or begins one for nothing.
      const bool there = index_.guess(this_thread(), key_of(at)) != 0;
      as_it_seems = as_it_seems && there == is_behind;
    }
    return g_.all(as_it_seems);
  }

  // A channel slot, and consecutive frames; `run.count` becomes 0 when they cannot be had at once.
  GPUFS_HD void take_resources(bulk_run& run) {
    struct taken {
      std::uint32_t count, slot, ring;
    } t{run.count, 0, 0};
    if (g_.is_leader()) {
      const bulk_layout& bulk = fs_.layout.bulk;
      const bool few = (shared().runs.fetch_add_relaxed(1) < bulk.runs_max) &
                       (shared().frames.fetch_add_relaxed(t.count) + t.count <= bulk.frames_max);
      const std::int32_t slot = few && is_mapped(run.page) ? fs_.client().try_acquire() : -EAGAIN;
      if (slot < 0) {
        (void)shared().runs.fetch_add_relaxed(~0u);
        give_back_frames(t.count);
        t.count = 0;
      } else {
        t.slot = static_cast<std::uint32_t>(slot);
        // In turn, so that no ring fills before the others.
        t.ring = shared().next_ring.fetch_add_relaxed(1) % fs_.layout.ring_count;
      }
    }
    t = g_.broadcast(t);
    run.slot = t.slot;
    run.count = 0;
    if (t.count == 0) return;
    const slot_run frames = frame_rings().take_consecutive(g_, t.ring, t.count, fs_.layout.bulk.least);
    run.frame = frames.first;
    run.count = frames.count;
    if (g_.is_leader() && run.count < t.count) {
      give_back_frames(t.count - run.count);
      if (run.count == 0) give_back_slot(run);
    }
  }

  // Whether the copy engine can reach it, as far as is known here. By the leader.
  GPUFS_HD bool is_mapped(std::uint64_t page) const {
    return extent_table(fs_).find(file_.version, page << fs_.layout.page_shift, 1) != 0;
  }
  GPUFS_HD void give_back_frames(std::uint32_t count) const { (void)shared().frames.fetch_add_relaxed(0u - count); }
  GPUFS_HD void give_back_slot(const bulk_run& run) const {
    fs_.client().release(run.slot);
    (void)shared().runs.fetch_add_relaxed(~0u);
  }

  // Makes the pages loading, as far as they are absent and their frames can be had; `run.count` becomes what came of it.
  GPUFS_HD void claim(bulk_run& run) {
    rings all = frame_rings();
    for (std::uint32_t base = 0; base < run.count; base += g_.size()) {
      const std::uint32_t i = base + g_.rank();
      bool mine = false;
      if (i < run.count) {
        GPUFS_SCHEDULE_POINT("bulk.claim");
        mine = all.claim_slot(run.frame + i) && index_.begin_load(key_of(run.page + i), run.frame + i);
      }
      const auto stop = static_cast<std::uint32_t>(g_.least(mine || i >= run.count ? run.count : i));
      if (stop == run.count) continue;
      if (mine && i > stop) index_.fail_load(key_of(run.page + i), run.frame + i, 0);
      run.count = stop;
    }
  }

  // By the leader.
  GPUFS_HD void post(const bulk_run& run) const {
    const std::uint64_t offset = run.page << fs_.layout.page_shift;
    const std::uint64_t bytes = std::uint64_t{run.count} << fs_.layout.page_shift;
    const auto length = static_cast<std::uint32_t>(file_.size - offset < bytes ? file_.size - offset : bytes);
    const bulk_target to{run.frame};
    copy_to_host(this_thread(), fs_.channel.staging(run.slot), reinterpret_cast<const char*>(&to), sizeof to);
    fs_.client().post(run.slot, {request_code::bulk, file_.handle, length, offset});
  }

  GPUFS_HD void wait_and_publish(const bulk_run& run) {
    struct answered {
      std::uint64_t bytes;  // that came
      std::uint64_t abandoned;
    } answer{0, 0};
    if (g_.is_leader()) {
      channel_client client = fs_.client();
      const channel_client::answer a = client.wait(run.slot);
      answer.abandoned = a.abandoned ? 1 : 0;
      if (a.result > 0) answer.bytes = static_cast<std::uint64_t>(a.result & ~notice_flag);
      if (!a.abandoned) {
        take_notice(fs_, file_.version, run.slot, a.result);
        give_back_slot(run);
      }
    }
    answer = g_.broadcast(answer);
    const std::uint64_t page_bytes = fs_.layout.page_bytes();
    const std::uint64_t offset = run.page << fs_.layout.page_shift;
    // What the file has of the run; in whole pages but for the last one.
    const std::uint64_t all = std::uint64_t{run.count} << fs_.layout.page_shift;
    const std::uint64_t bytes = file_.size - offset < all ? file_.size - offset : all;
    if (answer.bytes == bytes && bytes < all) {
      // The engine copied what the file has; the rest of a frame is zeros.
      fill_zero(g_, fs_.page(run.frame) + bytes, page_bytes - (bytes & (page_bytes - 1)));
    }
    // The barrier brings all members' stores before the releases below.
    g_.sync();
    std::uint32_t loaded = 0;
    for (std::uint32_t i = g_.rank(); i < run.count; i += g_.size()) {
      const std::uint64_t begin = std::uint64_t{i} << fs_.layout.page_shift;
      const std::uint64_t valid = bytes - begin < page_bytes ? bytes - begin : page_bytes;
      const std::uint32_t frame_number = run.frame + i;
      frame& f = frames_.at(frame_number);
      GPUFS_SCHEDULE_POINT("bulk.publish");
      if (answer.abandoned != 0) {
        // Somebody may still write into the frame: it stays in state evicting, nobody's for ever.
        f.header.error.store_relaxed(-EIO);
        f.header.state.fail_load();
        index_.remove(key_of(run.page + i), frame_number);
      } else if (begin + valid <= answer.bytes) {
        f.valid.store_relaxed(static_cast<std::uint32_t>(valid));
        f.header.state.publish();
        frames_.unpin(frame_number);
        ++loaded;
      } else {
        index_.fail_load(key_of(run.page + i), frame_number, 0);
      }
    }
    if (loaded != 0) {
      file_shard& counters = fs_.file_shard(file_.record);
      (void)counters.page_loads.fetch_add_relaxed(loaded);
      (void)counters.direct_loads.fetch_add_relaxed(loaded);
      fs_.counters().add(counter::bulk_loads, loaded);
    }
    if (!g_.is_leader()) return;
    (void)fs_.file_shard(file_.record).loaded_bytes.fetch_add_relaxed(answer.bytes);
    fs_.counters().add(counter::bulk_bytes, answer.bytes);
    if (answer.abandoned == 0) give_back_frames(run.count);
  }

  const mount_ref& fs_;
  const Group g_;
  const file_view file_;
  frame_table frames_;
  hash_index<frame_table> index_;
};

}  // namespace gpufs::detail

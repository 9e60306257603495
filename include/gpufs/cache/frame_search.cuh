// The search for a frame when none is free: how long a group searches, and the write-backs that
// free frames. page_cache.cuh has its place in a page fault.
#pragma once

#include "gpufs/cache/arena.cuh"
#include "gpufs/cache/frame_table.cuh"
#include "gpufs/cache/write_back.cuh"

namespace gpufs::detail {

// A part of page_cache.
template <class Group>
class frame_search {
 protected:
  GPUFS_HD frame_search(const mount_ref& fs, const Group& g) : fs_(fs), frames_(fs), g_(g) {}

  // ---- Called by the leader.

  // State of a search for a frame. `lived` and `moved` are durations in which the service has lived
  // since the search began.
  struct search {
    channel_client::deadline time;
    // Clock reading at the last update of `lived`.
    std::uint64_t looked;
    std::uint64_t lived;
    // Value of `lived` when the cache last made progress.
    std::uint64_t moved;
    // Last sum that moves() computed; 0: none yet.
    std::uint64_t motion;
  };
  GPUFS_HD static search begin_search() {
    const channel_client::deadline time = channel_client::begin_wait();
    return {time, time.start, 0, 0, 0};
  }

  // Updates `wait.lived` and returns it.
  GPUFS_HD GPUFS_OUT_OF_LINE std::uint64_t lived(search& wait) const {
    // The check reads host memory; the service's heartbeat changes every 50 ms.
    constexpr std::uint64_t look_every_ns = 10'000'000;
    if (platform::elapsed_ns(wait.looked) < look_every_ns) return wait.lived;
    wait.looked = platform::now_ns();
    // Spread over the slots: readers of one slot would queue for it.
    const std::uint32_t channel_slot = platform::processor() % fs_.channel.layout.slot_count;
    return wait.lived = fs_.client().lived_ns(channel_slot, wait.time);
  }

  // Whether frames are loading, or got other pages since the last call: then a frame may become
  // free. Changes of pins do not count, because readers of pages that stay pinned free nothing.
  // Samples a part of a large cache.
  GPUFS_HD GPUFS_OUT_OF_LINE bool moves(const slot_key& key, search& wait) const {
    constexpr std::uint32_t looks_max = 16384;
    const std::uint32_t all = fs_.layout.frame_count;
    const std::uint32_t count = all < looks_max ? all : looks_max;
    std::uint32_t at = fs_.at<slot_ring>(fs_.layout.rings)[frames_.rings().ring_of(key)].first;
    std::uint64_t motion = 1;
    bool loads = false;
    for (std::uint32_t i = 0; i < count; ++i) {
      const slot_header& header = frames_.header(at);
      const slot_phase phase = slot_state::phase(header.state.peek());
      loads = loads || phase == slot_phase::loading;
      // Evicting frames are not waited for: the frames of a run without an answer stay evicting.
      motion +=
          std::uint64_t{header.generation.load_relaxed()} * 4 + static_cast<std::uint32_t>(phase);
      at = at + 1 == all ? 0 : at + 1;
    }
    const bool changed = motion != wait.motion;
    wait.motion = motion;
    return loads || changed;
  }

  // Whether the group gives up: the cache made no progress for `reclaim_timeout_ns`, or the search
  // took longer than a request may.
  GPUFS_HD bool gives_up(const slot_key& key, search& wait) const {
    if (wait.motion == 0) (void)moves(key, wait);
    if (lived(wait) - wait.moved <= fs_.reclaim_timeout_ns) return false;
    if (!moves(key, wait) || wait.lived > fs_.timeouts.request_ns) return true;
    wait.moved = wait.lived;
    return false;
  }

  GPUFS_HD bool some_are_dirty() const {
    for (std::uint32_t i = 0; i < fs_.layout.ring_count; ++i) {
      if (fs_.at<slot_ring>(fs_.layout.rings)[i].dirty.load_relaxed() != 0) return true;
    }
    return false;
  }

  // ---- Called by the whole group.

  // Writes back some pages of the key's ring, or of another ring if that one has no dirty page.
  // Returns whether pages were written, or other groups are writing. Collective. Waits for a
  // channel slot, which may take long, and for the host.
  GPUFS_HD bool free_some(const slot_key& key) {
    const std::uint32_t own = frames_.rings().ring_of(key);
    const int done = by_one_warp(g_, [&](const one_warp_of<Group>& part) {
      write_back wb(fs_, part);
      if (!wb.take_slot(true)) return 0;
      const std::uint64_t start = platform::now_ns();
      bool written = false;
      // Stops after one missing answer. Errors of the host are retried for `reclaim_timeout_ns`.
      const auto go_on = [&] {
        std::uint32_t late = 0;
        if (part.is_leader()) late = platform::elapsed_ns(start) > fs_.reclaim_timeout_ns ? 1 : 0;
        return !written && !wb.gave_up() && part.broadcast(late) == 0;
      };
      for (std::uint32_t k = 0; k < fs_.layout.ring_count && go_on(); ++k) {
        const std::uint32_t ring = (own + k) % fs_.layout.ring_count;
        const slot_ring& r = fs_.at<slot_ring>(fs_.layout.rings)[ring];
        std::uint32_t dirty = 0;
        if (part.is_leader()) dirty = r.dirty.load_relaxed();
        if (part.broadcast(dirty) == 0) continue;
        // First the long runs. Pages that are still being written would go out in many small
        // pieces.
        const std::uint32_t long_until = r.count < 128 ? 0 : r.count < 1024 ? r.count / 4 : 256;
        for (std::uint32_t seen = 0; seen < long_until + r.count && go_on(); seen += 32)
          written = wb.some(ring, seen < long_until ? wb.long_run : wb.any_run);
      }
      wb.give_slot_back();
      if (!written) platform::pause(64);
      return written || (wb.contended() && !wb.gave_up()) ? 1 : 0;
    });
    return done != 0;
  }

  const mount_ref& fs_;
  frame_table frames_;
  const Group g_;
};

}  // namespace gpufs::detail

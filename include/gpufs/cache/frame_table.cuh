// Page frames as the slots of the index and the rings.
#pragma once

#include "gpufs/cache/arena.cuh"

namespace gpufs::detail {

class frame_table {
 public:
  GPUFS_HD explicit frame_table(const mount_ref& fs) : fs_(&fs) {}
  GPUFS_HD frame& at(std::uint32_t slot) const { return fs_->at<frame>(fs_->layout.frames)[slot]; }
  GPUFS_HD slot_header& header(std::uint32_t slot) const { return at(slot).header; }
  GPUFS_HD void unpin(std::uint32_t slot) const { (void)header(slot).state.unpin(); }
  GPUFS_HD hash_index<frame_table> index() const {
    return {fs_->at<index_bucket>(fs_->layout.buckets), fs_->layout.bucket_count, *this};
  }
  GPUFS_HD ring_set<frame_table> rings() const {
    return {fs_->at<slot_ring>(fs_->layout.rings), fs_->layout.ring_count, *this};
  }
  GPUFS_HD bool claim_resident(std::uint32_t slot) const {
    return take_out(slot, header(slot).state.claim(slot_phase::resident));
  }
  // As claim_resident(), for a frame whose only pin is the caller's.
  GPUFS_HD bool claim_pinned(std::uint32_t slot) const {
    return take_out(slot, header(slot).state.claim_pinned());
  }

 private:
  GPUFS_HD bool take_out(std::uint32_t slot, bool claimed) const {
    if (!claimed) return false;
    GPUFS_SCHEDULE_POINT("cache.evict");
    index().remove(header(slot).key(), slot);
    fs_->counters().add(counter::evictions);
    return true;
  }

  const mount_ref* fs_;
};

}  // namespace gpufs::detail

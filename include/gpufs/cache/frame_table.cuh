// Page frames as the slots of the index and the rings.
#pragma once

#include "gpufs/cache/arena.cuh"

namespace gpufs::detail {

class frame_table {
 public:
  GPUFS_HD explicit frame_table(const mount_ref& fs) : fs_(&fs) {}
  GPUFS_HD frame& at(std::uint32_t frame_number) const {
    return fs_->at<frame>(fs_->layout.frames)[frame_number];
  }
  GPUFS_HD slot_header& header(std::uint32_t frame_number) const { return at(frame_number).header; }
  GPUFS_HD void unpin(std::uint32_t frame_number) const {
    (void)header(frame_number).state.unpin();
  }
  GPUFS_HD hash_index<frame_table> index() const {
    return {fs_->at<index_bucket>(fs_->layout.buckets), fs_->layout.bucket_count, *this};
  }
  GPUFS_HD ring_set<frame_table> rings() const {
    return {fs_->at<slot_ring>(fs_->layout.rings), fs_->layout.ring_count, *this};
  }
  GPUFS_HD bool claim_resident(std::uint32_t frame_number) const {
    return take_out(frame_number, header(frame_number).state.claim(slot_phase::resident));
  }
  // As claim_resident(), for a frame whose only pin is the caller's.
  GPUFS_HD bool claim_pinned(std::uint32_t frame_number) const {
    return take_out(frame_number, header(frame_number).state.claim_pinned());
  }

 private:
  GPUFS_HD bool take_out(std::uint32_t frame_number, bool claimed) const {
    if (!claimed) return false;
    GPUFS_SCHEDULE_POINT("cache.evict");
    index().remove(header(frame_number).key(), frame_number);
    fs_->counters().add(counter::evictions);
    return true;
  }

  const mount_ref* fs_;
};

}  // namespace gpufs::detail

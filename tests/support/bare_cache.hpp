// A page cache by itself, in host memory: an arena without service or files, and a channel in which
// only the heartbeat changes. For tests of the cache's parts on the CPU device, with sizes that a
// mount would not choose: as few buckets as make every key meet.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "gpufs/cache/page_cache.cuh"

namespace gpufs::testing {

struct bare_cache_options {
  std::uint32_t frames = 8;
  std::uint32_t rings = 1;
  std::uint64_t buckets = 1;  // power of two; 15 cells each, more in all than frames
  std::uint32_t page_shift = 9;
  std::uint32_t processors = 16;   // sets of counters
  std::uint32_t extent_slots = 0;  // power of two
  std::uint32_t extent_shift = 16;
  std::uint64_t reclaim_timeout_ns = 20'000'000;
  std::uint64_t request_timeout_ns = 60'000'000'000;
};

class bare_cache {
 public:
  explicit bare_cache(const bare_cache_options& options = {});

  const mount_ref& ref() const { return ref_; }
  detail::frame_table frames() const { return detail::frame_table(ref_); }
  hash_index<detail::frame_table> index() const { return frames().index(); }
  ring_set<detail::frame_table> rings() const {
    return {ref_.at<slot_ring>(ref_.layout.rings), ref_.layout.ring_count, frames()};
  }
  index_bucket& bucket(std::uint64_t b) const {
    return ref_.at<index_bucket>(ref_.layout.buckets)[b];
  }
  std::uint64_t count(counter c) const;

  // When nobody uses the cache: the invariants of the state machine and the index (as at the end of
  // models/slot_state.pml). Records a failure of the running test for each that does not hold.
  void expect_at_rest() const;

 private:
  std::vector<index_bucket> memory_, channel_;  // for their alignment
  mount_ref ref_{};
  std::jthread heart_;
};

// Keys whose 64-bit hashes are all `hash`, so that nothing but the keys themselves tells them
// apart.
slot_key key_with_hash(std::uint64_t hash, std::uint64_t number);

}  // namespace gpufs::testing

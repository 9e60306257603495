// A page cache without a mount, in host memory: an arena without service or files, and a channel in
// which only the heartbeat changes. Tests of the cache's parts use it on the CPU device, with sizes
// that a mount would not choose: for example, so few buckets that all keys collide.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "gpufs/cache/page_cache.cuh"

namespace gpufs::testing {

struct bare_cache_options {
  std::uint32_t frames = 8;
  std::uint32_t rings = 1;
  std::uint64_t buckets = 1;  // power of two; 15 cells each; together more cells than frames
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

  // Checks the invariants of the state machine and the index (as at the end of
  // models/slot_state.pml). Call it while no thread uses the cache. Records a failure of the
  // running test for each violated invariant.
  void expect_at_rest() const;

 private:
  std::vector<index_bucket> memory_, channel_;  // of this type for its alignment
  mount_ref ref_{};
  std::jthread heart_;
};

// Returns keys whose 64-bit hashes are all `hash`, so that only the keys themselves differ.
slot_key key_with_hash(std::uint64_t hash, std::uint64_t number);

}  // namespace gpufs::testing

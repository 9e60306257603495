// The counters of a mount. Each multiprocessor has its own set, so counting costs one relaxed add
// to a cache line that no other multiprocessor writes. A reader adds the sets.
#pragma once

#include "gpufs/base/atomic.cuh"

namespace gpufs {

enum class counter : std::uint32_t {
  hits,               // pages found resident
  minor_faults,       // pages found loading: the group waited for another one
  direct_loads,       // pages copied from a registered extent
  staged_loads,       // pages loaded by a host worker
  bulk_loads,         // pages loaded by the copy engine, in runs
  open_loads,         // pages that arrived with the reply to an open
  load_errors,        // loads that ended in an error
  evictions,          // resident pages evicted for other pages
  reclaims,           // evictions ahead of need (included in `evictions`)
  lost_races,         // loads cancelled because another group had begun the same load
  no_frames,          // calls that ended in -ENOBUFS
  direct_bytes,       // file bytes loaded over the direct path
  staged_bytes,       // ... over the staged path
  bulk_bytes,         // ... over the bulk path
  open_bytes,         // ... with a reply to an open
  read_bytes,         // bytes returned by gread
  opens,              // opens that sent a request to the host
  reopens,            // opens of an open file: no round trip
  closes,             // closes by the last holder
  rpcs,               // requests to the host
  rpc_wait_ns,        // time that groups waited for replies
  rpc_failures,       // requests that failed: service dead or deadline passed
  sent_bytes,         // bytes sent to sinks
  written_bytes,      // bytes accepted by gwrite
  write_backs,        // dirty pages written to their files
  write_back_bytes,   // ... their dirty bytes
  write_back_errors,  // write requests that failed
  count_
};

inline constexpr std::uint32_t counter_count = static_cast<std::uint32_t>(counter::count_);
// Bucket b counts the major faults that took [2^b, 2^(b+1)) ns.
inline constexpr std::uint32_t latency_bucket_count = 32;

struct alignas(128) counter_set {
  atomic_word<std::uint64_t> values[counter_count];
  atomic_word<std::uint64_t> fault_latency[latency_bucket_count];

  GPUFS_HD void add(counter c, std::uint64_t n = 1) {
    values[static_cast<std::uint32_t>(c)].add_relaxed(n);
  }
  GPUFS_HD void add_latency(std::uint64_t ns) {
    std::uint32_t bucket = 0;
    while (bucket + 1 < latency_bucket_count && (ns >> (bucket + 1)) != 0) ++bucket;
    fault_latency[bucket].add_relaxed(1);
  }
};

}  // namespace gpufs

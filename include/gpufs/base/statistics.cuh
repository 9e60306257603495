// The counters of a mount: one set per multiprocessor, so that counting costs one unordered add to
// a line that no other multiprocessor touches; summed when somebody asks.
#pragma once

#include "gpufs/base/atomic.cuh"

namespace gpufs {

enum class counter : std::uint32_t {
  hits,               // pages found resident
  minor_faults,       // pages found loading: waited for another group
  direct_loads,       // pages pulled from a registered extent
  staged_loads,       // pages brought by a host worker
  bulk_loads,         // pages that the copy engine brought, in runs
  open_loads,         // pages that arrived with the answer to an open
  load_errors,        // loads that ended in an error
  evictions,          // resident pages given up for others
  reclaims,           // of these: ahead of need
  lost_races,         // loads given up because another group had begun the same
  no_frames,          // calls that ended in -ENOBUFS
  direct_bytes,       // file bytes that came over the direct path
  staged_bytes,       // ... the staged path
  bulk_bytes,         // ... the bulk path
  open_bytes,         // ... with an open
  read_bytes,         // bytes given to callers of gread
  opens,              // opens that asked the host
  reopens,            // opens of an open file: no round trip
  closes,             // closes by the last holder
  rpcs,               // requests to the host
  rpc_wait_ns,        // time that groups waited for answers
  rpc_failures,       // requests given up: service dead or deadline passed
  sent_bytes,         // bytes sent to sinks
  written_bytes,      // bytes taken from callers of gwrite
  write_backs,        // dirty pages written to their files
  write_back_bytes,   // ... their bytes, as far as they were dirty
  write_back_errors,  // requests to write that failed
  count_
};

inline constexpr std::uint32_t counter_count = static_cast<std::uint32_t>(counter::count_);
inline constexpr std::uint32_t latency_bucket_count =
    32;  // bucket b: major faults that took [2^b, 2^(b+1)) ns

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

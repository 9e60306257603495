// The inputs and results of plans.
#pragma once

#include "gpufs/gpufs.hpp"

namespace gpufs::job {

// The facts of a mount that decide how work is divided.
struct mount_facts {
  std::uint64_t page_bytes, cache_bytes;
  std::uint32_t multiprocessors;
  bool is_cpu;
  std::uint64_t bulk_bytes;  // the most that the copy engine loads at once; 0: not used
  static mount_facts of(mount& m) {
    const mount_options& o = m.options();
    return {o.page_bytes, o.cache_bytes, m.multiprocessors(), m.device() == device_kind::cpu,
            o.bulk_bytes};
  }
};

// The launch of a kernel that knows its plan.
struct launch_plan {
  std::uint32_t blocks;
  std::size_t scratch_bytes;  // of each block
};

}  // namespace gpufs::job

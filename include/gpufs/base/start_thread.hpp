// The only place that starts threads (tools/check_layers.py).
#pragma once

#include <thread>
#include <utility>

#include "gpufs/base/blocked_signals.hpp"
#include "gpufs/base/platform.cuh"

namespace gpufs {

// Starts a thread that calls `body`, which must not throw. The thread receives none of the
// program's signals (docs/security.md). Throws std::system_error if the system cannot create a
// thread, or std::bad_alloc.
template <class Body>
[[nodiscard]] std::thread start_thread(Body&& body) {
  GPUFS_SCHEDULE_POINT("thread.start");
  const blocked_signals for_good;
  return std::thread(std::forward<Body>(body));
}

}  // namespace gpufs

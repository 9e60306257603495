/**
 * Open GPUs, and their numbers.
 *
 * Calls hold `in_use` shared; closing takes it alone, after the number is out of the table. So
 * nothing begins after a handle is closed, and what has begun ends first.
 */
#pragma once

#include <cuda.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "calls/driver.hpp"
#include "calls/images.hpp"
#include "calls/memory.hpp"
#include "calls/submissions.hpp"
#include "gdev/gdev.h"

namespace gdev::calls {

/** What a handle consists of. */
struct open_gpu {
  CUdevice device = 0;
  CUcontext context = nullptr;
  calls::memory memory;
  calls::images images;
  calls::submissions work;
  /** Bytes; 0: copies are whole. Relaxed: a setting, with which nothing else is published. */
  std::atomic<std::uint64_t> chunk{0};
};

/** Opens a GPU. Returns its handle or a negative errno. */
[[nodiscard]] ghandle open_handle(int minor) noexcept;
[[nodiscard]] int close_handle(ghandle handle) noexcept;

struct held_handle {
  std::shared_mutex in_use;
  bool is_closed = false;  // guarded by in_use
  open_gpu gpu;
};

/** Returns the handle of this number, or null. */
[[nodiscard]] std::shared_ptr<held_handle> find_handle(ghandle handle) noexcept;

/** Calls call(open_gpu&) with the handle's context, and returns what it returns; -EBADF. */
template <typename Call>
int with_handle(ghandle handle, Call&& call) noexcept {
  const std::shared_ptr<held_handle> found = find_handle(handle);
  if (found == nullptr) {
    return -EBADF;
  }
  const std::shared_lock lock(found->in_use);
  if (found->is_closed) {
    return -EBADF;
  }
  const context_scope scope(found->gpu.context);
  return call(found->gpu);
}

}  // namespace gdev::calls

/**
 * CUDA's driver, as the g* calls reach it: opened at run time, so that programs start without one.
 *
 * Under gdev the loader gives them gdev's library, as it does to all programs.
 */
#pragma once

#include <cuda.h>

namespace gdev::calls {

struct driver_functions {
#define GDEV_NEED(name) decltype(&::name) name = nullptr;
#include "calls/driver_functions.inl"
#undef GDEV_NEED
  /** Null: the driver is older than CUDA 12.4. */
  decltype(&::cuFuncGetParamInfo) cuFuncGetParamInfo = nullptr;
};

/** Returns the driver; null: there is none, or it lacks a function. */
[[nodiscard]] const driver_functions* find_driver() noexcept;

/** Returns the driver, which was found before. */
[[nodiscard]] inline const driver_functions& driver() noexcept { return *find_driver(); }

/** Returns a negative errno, or 0. */
[[nodiscard]] int error_of(CUresult result) noexcept;

/** Makes a context current in this thread. */
class context_scope {
 public:
  explicit context_scope(CUcontext context) noexcept
      : is_pushed_(driver().cuCtxPushCurrent(context) == CUDA_SUCCESS) {}
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;
  ~context_scope() {
    if (is_pushed_) {
      CUcontext own = nullptr;
      static_cast<void>(driver().cuCtxPopCurrent(&own));
    }
  }

 private:
  bool is_pushed_;
};

}  // namespace gdev::calls

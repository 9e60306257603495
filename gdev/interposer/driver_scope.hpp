/** Calls of the driver by gdev itself, in the midst of a program's. */
#pragma once

#include <cuda.h>

#include "interposer/driver.hpp"

namespace gdev {

/** Makes a context current, and keeps our calls from ending a capture of the program's. */
class driver_scope {
 public:
  explicit driver_scope(CUcontext context) noexcept {
    static_cast<void>(call_driver<CUresult>(id_cuThreadExchangeStreamCaptureMode, &mode_));
    is_pushed_ = call_driver<CUresult>(id_cuCtxPushCurrent_v2, context) == CUDA_SUCCESS;
  }
  driver_scope(const driver_scope&) = delete;
  driver_scope& operator=(const driver_scope&) = delete;
  /** Tells whether the context is current: it has not ended. */
  [[nodiscard]] bool is_there() const noexcept { return is_pushed_; }
  ~driver_scope() {
    if (is_pushed_) {
      CUcontext own = nullptr;
      static_cast<void>(call_driver<CUresult>(id_cuCtxPopCurrent_v2, &own));
    }
    static_cast<void>(call_driver<CUresult>(id_cuThreadExchangeStreamCaptureMode, &mode_));
  }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_pushed_ = false;
};

}  // namespace gdev

// A launch on the twin, from its begin to its end, so that unmounting waits for it as it does for a GPU's kernels.
#pragma once

#include "gpufs/gpufs.hpp"

namespace gpufs {

class twin_launch {
 public:
  explicit twin_launch(const mount& m);
  ~twin_launch();
  twin_launch(const twin_launch&) = delete;
  twin_launch& operator=(const twin_launch&) = delete;

 private:
  device& device_;
};

}  // namespace gpufs

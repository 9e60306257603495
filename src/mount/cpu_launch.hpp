// A launch on the CPU device, from its begin to its end. Unmounting waits for it as for a GPU's
// kernels.
#pragma once

#include "gpufs/gpufs.hpp"

namespace gpufs {

class cpu_launch {
 public:
  explicit cpu_launch(mount& m);
  ~cpu_launch();
  cpu_launch(const cpu_launch&) = delete;
  cpu_launch& operator=(const cpu_launch&) = delete;

 private:
  device& device_;
};

}  // namespace gpufs

// For the programs whose tests run on a GPU.
#include "support/device.hpp"

gpufs::device_kind gpufs::testing::device() { return device_kind::cuda; }

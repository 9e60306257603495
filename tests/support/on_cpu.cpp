// For the program whose tests run on the CPU device.
#include "support/device.hpp"

gpufs::device_kind gpufs::testing::device() { return device_kind::cpu; }

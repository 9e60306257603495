// The device on which a program's tests run, and mounts of a suitable size for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpufs/device_array.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/machine.hpp"

namespace gpufs::testing {

// Each test program has one of the two definitions: on_cpu.cpp, on_gpu.cpp.
device_kind device();

// Of the mounts that base_options() describes.
inline constexpr std::uint64_t extent_bytes = 65536;

// Options of a small mount: 256 frames of 4 KiB, so that tests reach eviction soon. There is no
// direct path; tests that want it turn it on. The timeouts are long enough for a loaded machine
// under a sanitizer, and end a test that hangs.
inline mount_options base_options() {
  mount_options options;
  options.device = device();
  options.cache_bytes = std::uint64_t{1} << 20;
  options.page_bytes = 4096;
  options.workers = 2;
  options.extent_budget_bytes = 0;
  options.extent_bytes = extent_bytes;
  options.channel_slots = 16;
  options.staging_bytes = 8192;
  options.open_files = 256;
  options.cpu_threads = 8;
  options.reclaim_timeout = std::chrono::milliseconds(200);
  options.request_timeout = std::chrono::seconds(60);
  return options;
}

// Returns the GPU for a second mount: another GPU if there are several.
inline int another_gpu() {
  return device() == device_kind::cuda && examine_cuda().gpus.size() > 1 ? 1 : 0;
}

}  // namespace gpufs::testing

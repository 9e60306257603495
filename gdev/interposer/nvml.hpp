/**
 * NVML, the driver's library of management: what GPUs and processes use, without rights or context.
 *
 * It may be absent, and its calls may hang. So only a thread that nobody waits for without a bound
 * uses this (overhead.cpp). GDEV_NVML names its file; default: the one that the loader finds.
 */
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace gdev {

class nvml {
 public:
  using gpu_id = std::array<char, 16>;  // as cuDeviceGetUuid() returns it

  struct sample {
    bool is_listed = false;            // on one of the GPUs at least
    std::optional<std::uint64_t> own;  // bytes that this process uses; none: NVML does not say
    std::optional<std::uint64_t> all;  // bytes that are in use on the GPUs
  };

  /** Asks about GPUs, together. Loads the library first. */
  [[nodiscard]] sample look(const std::vector<gpu_id>& gpus);

 private:
  struct functions;
  [[nodiscard]] const functions* load();

  const functions* loaded_ = nullptr;
};

}  // namespace gdev

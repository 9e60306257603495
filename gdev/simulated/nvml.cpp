/**
 * NVML for the simulated GPU: what is in use, and by which process.
 *
 * GDEV_SIMULATED_NVML says what it is like: empty, as on a usual machine; `unavailable`: it does
 * not know what processes use; `foreign`: it knows processes by numbers of another name space;
 * `hangs`: it does not answer when it is asked for processes.
 */
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "simulated/gpu_memory.hpp"

namespace {

using gdev::simulated::gpu_memory;

constexpr int success = 0;
constexpr int not_found = 6;
constexpr int insufficient_size = 7;

struct memory_info {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct process_info {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

/** The memory of all GPUs. */
const std::vector<std::unique_ptr<gpu_memory>>& memories() {
  static const auto* const all = new auto(gdev::simulated::open_gpus());
  return *all;
}

const gpu_memory& of(void* device) { return *static_cast<gpu_memory*>(device); }

std::string_view likeness() {
  const char* const chosen = std::getenv("GDEV_SIMULATED_NVML");
  return chosen == nullptr ? "" : chosen;
}

}  // namespace

#define GDEV_NVML_EXPORT extern "C" __attribute__((visibility("default"))) int

GDEV_NVML_EXPORT nvmlInit_v2() { return success; }

GDEV_NVML_EXPORT nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = nullptr;
  for (const auto& one : memories()) {
    // As cuDeviceGetUuid has it: the number's bytes, the lowest first.
    const std::uint64_t number = one->number();
    std::array<char, 48> own{};
    std::snprintf(own.data(), own.size(), "GPU-%08x-%04x-%04x-0000-000000000000",
                  __builtin_bswap32(static_cast<std::uint32_t>(number)),
                  __builtin_bswap16(static_cast<std::uint16_t>(number >> 32)),
                  __builtin_bswap16(static_cast<std::uint16_t>(number >> 48)));
    if (std::strcmp(uuid, own.data()) == 0) {
      *device = one.get();
    }
  }
  return *device != nullptr ? success : not_found;
}

GDEV_NVML_EXPORT nvmlDeviceGetMemoryInfo(void* device, memory_info* info) {
  info->total = of(device).total_bytes();
  info->free = of(device).free_bytes();
  info->used = info->total - info->free;
  return success;
}

GDEV_NVML_EXPORT nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count,
                                                         process_info* processes) {
  while (likeness() == "hangs") {
    pause();
  }
  const auto owners = of(device).owners();
  const unsigned room = *count;
  *count = static_cast<unsigned>(owners.size());
  if (room < *count) {
    return insufficient_size;
  }
  for (const auto& [process, bytes] : owners) {
    *processes++ = {likeness() == "foreign" ? process + 1'000'000'000 : process,
                    likeness() == "unavailable" ? ~0ULL : bytes, ~0U, ~0U};
  }
  return success;
}

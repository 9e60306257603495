#include "interposer/nvml.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>

#include "base/environment.hpp"
#include "interposer/loader.hpp"

namespace gdev {

namespace {

// The part of nvml.h that is used. It is not among CUDA's headers, and its types do not change.
using nvml_device = void*;
constexpr int nvml_success = 0;
constexpr int nvml_insufficient_size = 7;
constexpr std::uint64_t not_available = ~std::uint64_t{0};

struct nvml_memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct nvml_process {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(gdev_loader_dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct nvml::functions {
  int (*init)();
  int (*device_by_uuid)(const char* uuid, nvml_device* device);
  int (*memory)(nvml_device device, nvml_memory* memory);
  int (*processes)(nvml_device device, unsigned* count, nvml_process* processes);
};

const nvml::functions* nvml::load() {
  if (loaded_ != nullptr) {
    return loaded_;
  }
  load_loader_functions();
  const char* const given = variable("GDEV_NVML");
  const char* const name = *given != '\0' ? given : "libnvidia-ml.so.1";
  void* const library = gdev_loader_dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  functions found{};
  if (library == nullptr || !find(library, "nvmlInit_v2", found.init) ||
      !find(library, "nvmlDeviceGetHandleByUUID", found.device_by_uuid) ||
      !find(library, "nvmlDeviceGetMemoryInfo", found.memory) ||
      // Both fill the same structure; drivers before 510 have the second one only.
      !(find(library, "nvmlDeviceGetComputeRunningProcesses_v3", found.processes) ||
        find(library, "nvmlDeviceGetComputeRunningProcesses_v2", found.processes)) ||
      found.init() != nvml_success) {
    static_cast<void>(dlerror());
    return nullptr;  // tried again at the next look: the driver may be about to be installed
  }
  loaded_ = new functions(found);  // until the process ends, as the library
  return loaded_;
}

namespace {

/** Finds a GPU, or an instance of one. */
template <typename Functions>
bool find_device(const Functions& call, const nvml::gpu_id& id, nvml_device& device) {
  for (const char* const kind : {"GPU", "MIG"}) {
    std::array<char, 48> text{};
    int end = std::snprintf(text.data(), text.size(), "%s", kind);
    for (std::size_t i = 0; i < id.size(); ++i) {
      const bool begins_part = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
      end += std::snprintf(text.data() + end, text.size() - static_cast<std::size_t>(end),
                           begins_part ? "-%02x" : "%02x", static_cast<unsigned char>(id[i]));
    }
    if (call.device_by_uuid(text.data(), &device) == nvml_success) {
      return true;
    }
  }
  return false;
}

/** Returns the processes of a GPU; none: NVML does not say. */
template <typename Functions>
std::optional<std::vector<nvml_process>> processes_of(const Functions& call, nvml_device device) {
  constexpr unsigned most = 1U << 16;
  for (unsigned room = 64; room <= most; room *= 4) {
    // A driver may have a longer structure: it must not write past the end.
    std::vector<nvml_process> found(2 * std::size_t{room});
    unsigned count = room;
    const int result = call.processes(device, &count, found.data());
    if (result == nvml_success && count <= room) {
      found.resize(count);
      return found;
    }
    if (result != nvml_insufficient_size) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

nvml::sample nvml::look(const std::vector<gpu_id>& gpus) {
  const functions* const call = load();
  if (call == nullptr) {
    return {};
  }
  sample seen{false, 0, 0};
  for (const gpu_id& id : gpus) {
    nvml_device device = nullptr;
    nvml_memory memory{};
    if (!find_device(*call, id, device) || call->memory(device, &memory) != nvml_success) {
      return {};
    }
    *seen.all += memory.used;
    const auto processes = processes_of(*call, device);
    for (const nvml_process& one : processes.value_or(std::vector<nvml_process>{})) {
      if (one.pid != static_cast<unsigned>(getpid())) {
        continue;
      }
      seen.is_listed = true;
      // No process has more than there is: a number like that is none.
      if (one.bytes == not_available || one.bytes > memory.total) {
        seen.own.reset();
      } else if (seen.own) {
        *seen.own += one.bytes;
      }
    }
    if (!processes) {
      seen.own.reset();
    }
  }
  if (!seen.is_listed) {
    seen.own.reset();
  }
  return seen;
}

}  // namespace gdev

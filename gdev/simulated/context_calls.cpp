/** The simulated driver: contexts. */
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "simulated/captures.hpp"
#include "simulated/device.hpp"
#include "simulated/exports.hpp"

namespace gdev::simulated {

namespace {

/** All contexts of a GPU share what is on it; their handles differ. */
struct context {
  CUdevice gpu = 0;
  chunk memory;  // GDEV_SIMULATED_CONTEXT: its bytes
};

struct primary_context : context {
  std::mutex mutex;  // of who changes it
  std::atomic<unsigned> users = 0;
};

/** The primary contexts, by GPU. */
std::vector<primary_context>& primaries() {
  static auto* const all = [] {
    auto* const made = new std::vector<primary_context>(  // never ended, as the device
        static_cast<std::size_t>(the_device().count()));
    for (std::size_t i = 0; i < made->size(); ++i) {
      (*made)[i].gpu = static_cast<CUdevice>(i);
    }
    return made;
  }();
  return *all;
}

primary_context& primary_of(CUdevice gpu) { return primaries().at(static_cast<std::size_t>(gpu)); }

// Not ended with the thread: exit handlers call the driver too.
thread_local std::vector<CUcontext>& current = *new std::vector<CUcontext>;

CUcontext handle_of(context& which) noexcept { return reinterpret_cast<CUcontext>(&which); }

/** The contexts that are no primary ones. */
struct all_contexts {
  std::mutex mutex;
  std::set<CUcontext> all;
};

all_contexts& contexts() {
  static auto* const only = new all_contexts;
  return *only;
}

bool is_over(CUcontext which) noexcept {
  for (primary_context& one : primaries()) {
    if (which == handle_of(one)) {
      return one.users == 0;
    }
  }
  const std::lock_guard lock(contexts().mutex);
  return !contexts().all.contains(which);
}

/** Makes a context that is no primary one, with its memory. */
CUresult make_context(CUcontext* made, CUdevice gpu) {
  if (!the_device().has(gpu)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto owner = std::make_unique<context>();
  owner->gpu = gpu;
  const CUresult result = the_device().take(gpu, "GDEV_SIMULATED_CONTEXT", owner->memory);
  if (result == CUDA_SUCCESS) {
    *made = handle_of(*owner.release());
    const std::lock_guard lock(contexts().mutex);
    contexts().all.insert(*made);
  }
  return result;
}

/** Ends what a context owns. */
void end_what_is_in(CUcontext ended) {
  end_captures_of(ended);
  end_events_of(ended);
}

/** Ends a context that is no primary one. */
void end_context(CUcontext ended) {
  end_what_is_in(ended);
  std::erase(current, ended);
  {
    const std::lock_guard lock(contexts().mutex);
    contexts().all.erase(ended);
  }
  delete reinterpret_cast<context*>(ended);
}

CUresult release_primary(CUdevice gpu) {
  if (!the_device().has(gpu)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  primary_context& which = primary_of(gpu);
  const std::lock_guard lock(which.mutex);
  if (which.users == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (--which.users == 0) {
    the_device().wait_for_all();
    the_device().free_all(gpu);
    which.memory = {};
    end_what_is_in(handle_of(which));
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUcontext current_context() noexcept { return current.empty() ? nullptr : current.back(); }

CUdevice current_gpu() noexcept {
  const CUcontext found = current_context();
  return found == nullptr || is_over(found) ? 0 : reinterpret_cast<context*>(found)->gpu;
}

bool has_context() noexcept { return !current.empty() && !is_over(current.back()); }

}  // namespace gdev::simulated

using gdev::simulated::current;
using gdev::simulated::handle_of;
using gdev::simulated::is_over;
using gdev::simulated::primary_of;
using gdev::simulated::the_device;

GDEV_EXPORT(cuDevicePrimaryCtxRetain, CUcontext* made, CUdevice device) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto& which = primary_of(device);
  const std::lock_guard lock(which.mutex);
  const CUresult result = which.users == 0
                              ? the_device().take(device, "GDEV_SIMULATED_CONTEXT", which.memory)
                              : CUDA_SUCCESS;
  which.users += result == CUDA_SUCCESS ? 1 : 0;
  *made = handle_of(which);
  return result;
}

GDEV_EXPORT(cuDevicePrimaryCtxRelease, CUdevice device) {
  return gdev::simulated::release_primary(device);
}

GDEV_EXPORT(cuDevicePrimaryCtxSetFlags, CUdevice /*device*/, unsigned /*flags*/) {
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDevicePrimaryCtxGetState, CUdevice device, unsigned* flags, int* is_active) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto& which = primary_of(device);
  const std::lock_guard lock(which.mutex);
  *flags = 0;
  *is_active = which.users != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDevicePrimaryCtxReset, CUdevice device) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  the_device().free_all(device);
  gdev::simulated::end_what_is_in(handle_of(primary_of(device)));
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxCreate, CUcontext* made, CUctxCreateParams* /*parameters*/, unsigned /*flags*/,
            CUdevice device) {
  const CUresult result = gdev::simulated::make_context(made, device);
  if (result == CUDA_SUCCESS) {
    current.push_back(*made);
  }
  return result;
}

GDEV_EXPORT(cuCtxDestroy, CUcontext ended) {
  the_device().wait_for_all();
  gdev::simulated::end_context(ended);
  return CUDA_SUCCESS;
}

// --- Green contexts: they hold the primary one, which has their memory ---

GDEV_EXPORT(cuDeviceGetDevResource, CUdevice /*device*/, CUdevResource* found,
            CUdevResourceType /*type*/) {
  *found = {};
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDevResourceGenerateDesc, CUdevResourceDesc* made, CUdevResource* /*all*/,
            unsigned /*count*/) {
  *made = nullptr;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGreenCtxCreate, CUgreenCtx* made, CUdevResourceDesc /*of*/, CUdevice device,
            unsigned /*flags*/) {
  CUcontext unused = nullptr;
  const CUresult result = cuDevicePrimaryCtxRetain(&unused, device);
  return result == CUDA_SUCCESS
             ? gdev::simulated::make_context(reinterpret_cast<CUcontext*>(made), device)
             : result;
}

GDEV_EXPORT(cuCtxFromGreenCtx, CUcontext* found, CUgreenCtx of) {
  *found = reinterpret_cast<CUcontext>(of);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGreenCtxDestroy, CUgreenCtx ended) {
  const CUdevice gpu = reinterpret_cast<gdev::simulated::context*>(ended)->gpu;
  gdev::simulated::end_context(reinterpret_cast<CUcontext>(ended));
  return gdev::simulated::release_primary(gpu);
}

GDEV_EXPORT(cuCtxSetCurrent, CUcontext chosen) {
  if (current.empty()) {
    current.push_back(chosen);
  } else {
    current.back() = chosen;
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxGetCurrent, CUcontext* found) {
  *found = gdev::simulated::current_context();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxPushCurrent, CUcontext chosen) {
  if (is_over(chosen)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  current.push_back(chosen);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxPopCurrent, CUcontext* found) {
  if (current.empty()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (found != nullptr) {
    *found = current.back();
  }
  current.pop_back();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxGetDevice, CUdevice* device) {
  *device = gdev::simulated::current_gpu();
  return current.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/** The simulated driver: streams, events, copies, modules and launches. */
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "simulated/captures.hpp"
#include "simulated/device.hpp"
#include "simulated/exports.hpp"
#include "simulated/kernels.hpp"

namespace gdev::simulated {

namespace {

template <typename Type>
Type* pointer(CUdeviceptr address) noexcept {
  return reinterpret_cast<Type*>(address);
}

CUresult copy(void* to, const void* from, std::size_t bytes, CUstream where, bool is_per_thread) {
  if (!has_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  the_device().submit(where, is_per_thread, [=] { std::memcpy(to, from, bytes); });
  return CUDA_SUCCESS;
}

CUresult copy_and_wait(void* to, const void* from, std::size_t bytes, bool is_per_thread) {
  const CUresult result = copy(to, from, bytes, nullptr, is_per_thread);
  the_device().wait(nullptr, is_per_thread);
  return result;
}

template <typename Value>
CUresult set(CUdeviceptr address, Value value, std::size_t count, CUstream where,
             bool is_per_thread) {
  the_device().submit(where, is_per_thread,
                      [=] { std::fill_n(pointer<Value>(address), count, value); });
  return CUDA_SUCCESS;
}

/** The text of a module: its kernels are those with entries in it. */
struct module {
  std::string text;
  chunk memory;  // GDEV_SIMULATED_MODULE: its bytes
};

CUresult launch(kernel which, void** parameters, CUstream where, bool is_per_thread) {
  // The caller's values may be gone when the kernel runs.
  struct values {
    std::array<std::uint64_t, 8> of{};
    std::array<void*, 8> at{};
  };
  const auto kept = std::make_shared<values>();
  const unsigned char* const sizes = parameter_sizes(which);
  for (std::size_t i = 0; sizes[i] != 0; ++i) {
    std::memcpy(&kept->of[i], parameters[i], sizes[i]);
    kept->at[i] = &kept->of[i];
  }
  the_device().submit(where, is_per_thread, [=] { which(kept->at.data()); });
  return CUDA_SUCCESS;
}

/** All events that programs have; those that ended with their contexts stay, without one. */
struct all_events {
  std::mutex mutex;
  std::set<event*> all;
};

all_events& events() {
  static auto* const only = new all_events;  // never ended, as the device
  return *only;
}

}  // namespace

event& live(CUevent handle) noexcept {
  auto* const found = reinterpret_cast<event*>(handle);
  if (found == nullptr || found->context == nullptr) {
    std::fprintf(stderr, "simulated GPU: an event is used that is null or has ended\n");
    std::abort();
  }
  return *found;
}

void end_events_of(CUcontext ended) {
  const std::lock_guard lock(events().mutex);
  for (event* const one : events().all) {
    one->context = one->context == ended ? nullptr : one->context;
  }
}

}  // namespace gdev::simulated

using gdev::simulated::copy;
using gdev::simulated::copy_and_wait;
using gdev::simulated::event;
using gdev::simulated::events;
using gdev::simulated::launch;
using gdev::simulated::live;
using gdev::simulated::module;
using gdev::simulated::pointer;
using gdev::simulated::the_device;

// --- Streams and events ---

GDEV_EXPORT(cuStreamCreate, CUstream* made, unsigned flags) {
  return the_device().create_stream(made, (flags & CU_STREAM_NON_BLOCKING) == 0);
}

GDEV_EXPORT(cuStreamCreateWithPriority, CUstream* made, unsigned flags, int /*priority*/) {
  return the_device().create_stream(made, (flags & CU_STREAM_NON_BLOCKING) == 0);
}

GDEV_EXPORT(cuStreamDestroy, CUstream ended) {
  gdev::simulated::end_capture_of(ended);
  return the_device().destroy_stream(ended);
}

GDEV_EXPORT(cuEventCreate, CUevent* made, unsigned /*flags*/) {
  const CUcontext context = gdev::simulated::current_context();
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  auto* const owner = new event;
  owner->context = context;
  *made = reinterpret_cast<CUevent>(owner);
  const std::lock_guard lock(events().mutex);
  events().all.insert(owner);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuEventDestroy, CUevent ended) {
  auto* const gone = &live(ended);
  {
    const std::lock_guard lock(events().mutex);
    events().all.erase(gone);
  }
  delete gone;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxRecordEvent, CUcontext /*context*/, CUevent which) {
  the_device().record_all(live(which));
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuEventQuery, CUevent which) {
  event& asked = live(which);
  const std::lock_guard lock(asked.mutex);
  return asked.recorded_in == nullptr || asked.recorded_in->is_done(asked.ticket)
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_READY;
}

GDEV_EXPORT(cuEventSynchronize, CUevent which) {
  event& asked = live(which);
  asked.mutex.lock();
  const auto* const stream = asked.recorded_in;
  const std::uint64_t ticket = asked.ticket;
  asked.mutex.unlock();
  if (stream != nullptr) {
    stream->wait(ticket);
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuEventElapsedTime, float* milliseconds, CUevent begin, CUevent end) {
  if (cuEventQuery(begin) != CUDA_SUCCESS || cuEventQuery(end) != CUDA_SUCCESS) {
    return CUDA_ERROR_NOT_READY;
  }
  const auto at = [](CUevent which) { return *live(which).at_ns; };
  *milliseconds = static_cast<float>(at(end) - at(begin)) / 1e6F;
  return CUDA_SUCCESS;
}

// --- Modules ---

GDEV_EXPORT(cuModuleLoadData, CUmodule* made, const void* image) {
  auto loaded = std::make_unique<module>(static_cast<const char*>(image));
  if (loaded->text.find(".version") == std::string::npos) {  // PTX begins with it
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const CUresult result =
      the_device().take(gdev::simulated::current_gpu(), "GDEV_SIMULATED_MODULE", loaded->memory);
  *made = reinterpret_cast<CUmodule>(result == CUDA_SUCCESS ? loaded.release() : nullptr);
  return result;
}

GDEV_EXPORT(cuModuleUnload, CUmodule ended) {
  delete reinterpret_cast<module*>(ended);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuModuleGetFunction, CUfunction* found, CUmodule which, const char* name) {
  const std::string entry = std::string(".entry ") + name + "(";
  const bool has = reinterpret_cast<module*>(which)->text.find(entry) != std::string::npos;
  const gdev::simulated::kernel kernel = has ? gdev::simulated::find_kernel(name) : nullptr;
  *found = reinterpret_cast<CUfunction>(kernel);
  return kernel != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

GDEV_EXPORT(cuFuncGetParamInfo, CUfunction which, std::size_t index, std::size_t* offset,
            std::size_t* bytes) {
  const unsigned char* const sizes =
      gdev::simulated::parameter_sizes(reinterpret_cast<gdev::simulated::kernel>(which));
  *offset = 0;
  for (std::size_t i = 0; sizes[i] != 0; ++i) {
    *offset = (*offset + sizes[i] - 1) / sizes[i] * sizes[i];
    if (i == index) {
      *bytes = sizes[i];
      return CUDA_SUCCESS;
    }
    *offset += sizes[i];
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// --- What differs between the kinds of default streams: each is exported twice ---

#undef cuStreamSynchronize
#undef cuStreamQuery
#undef cuStreamGetId
#undef cuStreamGetCtx
#undef cuStreamWaitEvent
#undef cuEventRecord
#undef cuMemcpy
#undef cuMemcpyAsync
#undef cuMemcpyHtoD
#undef cuMemcpyDtoH
#undef cuMemcpyDtoD
#undef cuMemcpyHtoDAsync
#undef cuMemcpyDtoHAsync
#undef cuMemcpyDtoDAsync
#undef cuMemsetD8
#undef cuMemsetD32
#undef cuMemsetD8Async
#undef cuMemsetD32Async
#undef cuMemAllocAsync
#undef cuMemAllocFromPoolAsync
#undef cuMemFreeAsync
#undef cuMemMapArrayAsync
#undef cuLaunchKernel
#undef cuLaunchKernelEx

#define GDEV_PTDS(name) name
#define GDEV_PTSZ(name) name
#define GDEV_PER_THREAD false
#include "simulated/stream_calls.inl"
#undef GDEV_PTDS
#undef GDEV_PTSZ
#undef GDEV_PER_THREAD

#define GDEV_PTDS(name) name##_ptds
#define GDEV_PTSZ(name) name##_ptsz
#define GDEV_PER_THREAD true
#include "simulated/stream_calls.inl"

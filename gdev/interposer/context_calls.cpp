#include "interposer/context_calls.hpp"

#include <cuda.h>

#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/endless.hpp"
#include "interposer/captures.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "interposer/graph_memory.hpp"
#include "interposer/ipc.hpp"
#include "interposer/ledger.hpp"
#include "interposer/overhead.hpp"
#include "interposer/pools.hpp"
#include "interposer/shared_memory.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

/** Frees all of a context that call() ends. The caller holds a submission. */
template <typename Call>
CUresult take_down(CUcontext context, Call&& call) {
  detach_all(context);
  close_imports(context);
  swappable().free_all(context);
  pools().end_context(context);
  auto freed = allocations().take_all(context);
  auto freed_arrays = arrays().take_all(context);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    forget_captures(context);
  } else {
    allocations().put_back(std::move(freed));
    arrays().put_back(std::move(freed_arrays));
  }
  return result;
}

/** A context has ended. */
void note_end(CUcontext context) {
  note_less_graph_memory();
  note_context_end(context);
}

/** Calls the driver to end a context; null: none that is known. */
template <typename Call>
CUresult end_context(CUcontext context, Call&& call) {
  if (context == nullptr) {
    return call();
  }
  CUresult result = CUDA_SUCCESS;
  {
    const submission in_turn(work::other);
    result = take_down(context, call);
  }
  if (result == CUDA_SUCCESS) {
    note_end(context);
  }
  return result;
}

template <function_id Id>
CUresult ctx_destroy(CUcontext context) noexcept {
  return end_context(context, [&] { return call_driver<CUresult>(Id, context); });
}

/** The primary contexts that were retained, by device. */
struct primary_contexts {
  std::mutex mutex;
  std::map<CUdevice, CUcontext> of;
};

endless<primary_contexts> retained;

primary_contexts& primaries() noexcept { return retained.get(); }

CUcontext primary_of(CUdevice device) noexcept {
  const std::lock_guard lock(primaries().mutex);
  const auto found = primaries().of.find(device);
  return found == primaries().of.end() ? nullptr : found->second;
}

/** Tells whether a device's primary context is there. */
bool is_active(CUdevice device) noexcept {
  unsigned flags = 0;
  int is_active = 1;
  static_cast<void>(
      call_driver<CUresult>(id_cuDevicePrimaryCtxGetState, device, &flags, &is_active));
  return is_active != 0;
}

CUresult primary_retain(CUcontext* context, CUdevice device) noexcept {
  std::optional<context_making> making;
  if (!is_active(device)) {
    making.emplace(device);
  }
  const CUresult result = call_driver<CUresult>(id_cuDevicePrimaryCtxRetain, context, device);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (making && !making->fits(*context)) {
    static_cast<void>(call_driver<CUresult>(id_cuDevicePrimaryCtxRelease_v2, device));
    note_context_end(*context);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  swappable().note_context(*context);
  const std::lock_guard lock(primaries().mutex);
  primaries().of[device] = *context;
  return result;
}

template <function_id Id, typename Function>
struct makes_context;

template <function_id Id, typename... Arguments>
struct makes_context<Id, CUresult(CUcontext*, Arguments...)> {
  static CUresult call(CUcontext* made, Arguments... arguments) noexcept {
    const CUdevice device = std::get<sizeof...(Arguments) - 1>(std::tie(arguments...));
    context_making making(device);
    const CUresult result = call_driver<CUresult>(Id, made, arguments...);
    if (result != CUDA_SUCCESS) {
      return result;
    }
    if (!making.fits(*made)) {
      static_cast<void>(call_driver<CUresult>(id_cuCtxDestroy_v2, *made));
      note_context_end(*made);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    swappable().note_context(*made);
    return result;
  }
};

CUresult enable_peer_access(CUcontext peer, unsigned flags) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuCtxEnablePeerAccess, peer, flags);
  CUdevice user = 0;
  CUdevice owner = 0;
  if (result != CUDA_SUCCESS || call_driver<CUresult>(id_cuCtxGetDevice, &user) != CUDA_SUCCESS) {
    return result;
  }
  {
    const driver_scope scope(peer);
    if (call_driver<CUresult>(id_cuCtxGetDevice, &owner) != CUDA_SUCCESS) {
      return result;
    }
  }
  const submission in_turn(work::other);
  give_access_to_imports(owner, user);
  return swappable().give_access(owner, user);
}

template <function_id Id>
CUresult primary_release(CUdevice device) noexcept {
  CUresult result = CUDA_SUCCESS;
  CUcontext ended = nullptr;
  {
    // One for all: between the end of the context and the end of what it had, nothing may move.
    const submission in_turn(work::other);
    result = call_driver<CUresult>(Id, device);
    if (result == CUDA_SUCCESS && !is_active(device)) {
      ended = primary_of(device);  // this was the last release
    }
    if (ended != nullptr) {
      static_cast<void>(take_down(ended, [] { return CUDA_SUCCESS; }));
    }
  }
  if (ended != nullptr) {
    note_end(ended);
  }
  return result;
}

/**
 * Ends a green context. It holds the device's primary one, which has its memory; its streams are
 * of no use afterwards, also if they are captured.
 */
CUresult green_destroy(CUgreenCtx green) noexcept {
  CUcontext own = nullptr;
  CUdevice device = 0;
  if (call_driver<CUresult>(id_cuCtxFromGreenCtx, &own, green) != CUDA_SUCCESS) {
    return call_driver<CUresult>(id_cuGreenCtxDestroy, green);
  }
  {
    const driver_scope scope(own);
    static_cast<void>(call_driver<CUresult>(id_cuCtxGetDevice, &device));
  }
  CUresult result = CUDA_SUCCESS;
  CUcontext ended = nullptr;
  {
    const submission in_turn(work::other);
    CUcontext primary = nullptr;
    const bool is_held = call_driver<CUresult>(id_cuDevicePrimaryCtxRetain, &primary, device) ==
                         CUDA_SUCCESS;  // a program with green contexts only has not asked for it
    pools().end_context(own);
    result = call_driver<CUresult>(id_cuGreenCtxDestroy, green);
    if (result == CUDA_SUCCESS) {
      forget_captures(own);
      allocations().hand_over(own, primary);
      arrays().hand_over(own, primary);
    }
    if (is_held) {
      static_cast<void>(call_driver<CUresult>(id_cuDevicePrimaryCtxRelease_v2, device));
    }
    if (!is_active(device)) {
      ended = primary;  // the green one was the last to hold it
      static_cast<void>(take_down(ended, [] { return CUDA_SUCCESS; }));
    }
  }
  if (ended != nullptr) {
    note_end(ended);
  }
  return result;
}

template <function_id Id>
CUresult primary_reset(CUdevice device) noexcept {
  return end_context(primary_of(device), [&] { return call_driver<CUresult>(Id, device); });
}

template <function_id Id, typename Function>
void* makes() noexcept {
  return address_of(&makes_context<Id, Function>::call);
}

}  // namespace

void forget_contexts() noexcept {
  retained.forget();
  forget_captures();
}

void* context_wrapper(function_id id) noexcept {
  switch (id) {
    case id_cuCtxDestroy: return address_of(&ctx_destroy<id_cuCtxDestroy>);
    case id_cuCtxDetach: return address_of(&ctx_destroy<id_cuCtxDetach>);
    case id_cuCtxDestroy_v2: return address_of(&ctx_destroy<id_cuCtxDestroy_v2>);
    case id_cuDevicePrimaryCtxRetain: return address_of(&primary_retain);
    case id_cuDevicePrimaryCtxRelease:
      return address_of(&primary_release<id_cuDevicePrimaryCtxRelease>);
    case id_cuDevicePrimaryCtxRelease_v2:
      return address_of(&primary_release<id_cuDevicePrimaryCtxRelease_v2>);
    case id_cuDevicePrimaryCtxReset: return address_of(&primary_reset<id_cuDevicePrimaryCtxReset>);
    case id_cuDevicePrimaryCtxReset_v2:
      return address_of(&primary_reset<id_cuDevicePrimaryCtxReset_v2>);
    case id_cuCtxCreate: return makes<id_cuCtxCreate, CUresult(CUcontext*, unsigned, CUdevice)>();
    case id_cuCtxCreate_v2:
      return makes<id_cuCtxCreate_v2, CUresult(CUcontext*, unsigned, CUdevice)>();
    case id_cuCtxCreate_v3:
      return makes<id_cuCtxCreate_v3,
                   CUresult(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice)>();
    case id_cuCtxCreate_v4:
      return makes<id_cuCtxCreate_v4,
                   CUresult(CUcontext*, CUctxCreateParams*, unsigned, CUdevice)>();
    case id_cuGreenCtxDestroy: return address_of(&green_destroy);
    case id_cuCtxEnablePeerAccess: return address_of(&enable_peer_access);
    default: return nullptr;
  }
}

}  // namespace gdev

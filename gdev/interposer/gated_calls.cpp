// Wrappers of the calls that submit work: they pass the gate. All types are those of cuda.h, which
// declares every version and kind of default stream for this macro.
#define __CUDA_API_VERSION_INTERNAL
#include "interposer/gated_calls.hpp"

#include <cuda.h>

#include <optional>
#include <string_view>

#include "interposer/captures.hpp"
#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

namespace {

/** Returns what a function submits. */
constexpr work work_of(std::string_view name, function_class kind) noexcept {
  const auto has = [name](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  if (kind == function_class::launch) {
    return work::launch;
  }
  if (has("HtoD") || has("HtoA")) {
    return work::to_device;
  }
  return has("DtoH") || has("AtoH") ? work::to_host : work::fill;
}

template <function_id Id, typename Function>
struct gated;

template <function_id Id, typename... Arguments>
struct gated<Id, CUresult(Arguments...)> {
  static CUresult call(Arguments... arguments) noexcept {
    const submission passed(work_of(functions[Id].name, functions[Id].kind));
    return call_driver<CUresult>(Id, arguments...);
  }
};

/** A capture begins: no turn ends before it does, because work of it must not wait. */
template <function_id Id, typename Function>
struct begins_capture;

template <function_id Id, typename... Arguments>
struct begins_capture<Id, CUresult(CUstream, Arguments...)> {
  static CUresult call(CUstream stream, Arguments... arguments) noexcept {
    const submission passed(work::other);
    // Before the call: from its beginning on no other thread may wait for the context.
    const capture_origin origin = origin_of(named<Id>(stream));
    const bool is_new = note_capture(origin);
    const CUresult result = call_driver<CUresult>(Id, stream, arguments...);
    if (is_new && result != CUDA_SUCCESS) {
      take_capture(origin.stream);
    }
    return result;
  }
};

template <function_id Ask>
bool is_capturing(CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return call_driver<CUresult>(Ask, stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

template <function_id Id, function_id Ask>
CUresult end_capture(CUstream stream, CUgraph* graph) noexcept {
  const CUresult result = call_driver<CUresult>(Id, stream, graph);
  // Also a capture that has failed ends; one that this call may not end goes on.
  if (!is_capturing<Ask>(stream)) {
    take_capture(key_of(named<Id>(stream)));
  }
  return result;
}

template <function_id Id>
CUresult destroy_stream(CUstream stream) noexcept {
  // Out before the call: afterwards another stream may get the handle.
  const std::optional<capture_origin> ended = take_capture(key_of(stream));
  const CUresult result = call_driver<CUresult>(Id, stream);
  if (ended.has_value() && result != CUDA_SUCCESS && is_capturing<id_cuStreamIsCapturing>(stream)) {
    note_capture(*ended);
  }
  return result;
}

/** Green contexts: work in them is not seen by a wait for the contexts that are known. */
template <function_id Id, typename Function>
struct ends_swapping;

template <function_id Id, typename... Arguments>
struct ends_swapping<Id, CUresult(Arguments...)> {
  static CUresult call(Arguments... arguments) noexcept {
    swappable_memory::stop();
    return call_driver<CUresult>(Id, arguments...);
  }
};

}  // namespace

void* gated_wrapper(function_id id) noexcept {
  switch (id) {
#define GDEV_GATED(name, kind) \
  case id_##name: return reinterpret_cast<void*>(&gated<id_##name, decltype(name)>::call);
#include "gated.inc"
#undef GDEV_GATED
#define GDEV_BEGINS(name) \
  case id_##name: return reinterpret_cast<void*>(&begins_capture<id_##name, decltype(name)>::call)
    GDEV_BEGINS(cuStreamBeginCapture);
    GDEV_BEGINS(cuStreamBeginCapture_ptsz);
    GDEV_BEGINS(cuStreamBeginCapture_v2);
    GDEV_BEGINS(cuStreamBeginCapture_v2_ptsz);
    GDEV_BEGINS(cuStreamBeginCaptureToGraph);
    GDEV_BEGINS(cuStreamBeginCaptureToGraph_ptsz);
#undef GDEV_BEGINS
    case id_cuStreamEndCapture:
      return reinterpret_cast<void*>(&end_capture<id_cuStreamEndCapture, id_cuStreamIsCapturing>);
    case id_cuStreamEndCapture_ptsz:
      return reinterpret_cast<void*>(
          &end_capture<id_cuStreamEndCapture_ptsz, id_cuStreamIsCapturing_ptsz>);
    case id_cuStreamDestroy: return reinterpret_cast<void*>(&destroy_stream<id_cuStreamDestroy>);
    case id_cuStreamDestroy_v2:
      return reinterpret_cast<void*>(&destroy_stream<id_cuStreamDestroy_v2>);
    case id_cuGreenCtxCreate:
      return reinterpret_cast<void*>(
          &ends_swapping<id_cuGreenCtxCreate, decltype(cuGreenCtxCreate)>::call);
    default: break;
  }
  // Work of a function that this build has no type of would not be held up.
  if (functions[id].kind == function_class::launch || functions[id].kind == function_class::copy) {
    swappable_memory::stop();
  }
  return nullptr;
}

void note_unknown_function(std::string_view name) noexcept {
  for (const std::string_view begin : {"cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"}) {
    if (name.starts_with(begin)) {
      swappable_memory::stop();
    }
  }
}

}  // namespace gdev

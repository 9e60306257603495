#include "interposer/wrappers.hpp"

#include <cuda.h>

#include "interposer/call_counts.hpp"
#include "interposer/driver.hpp"
#include "interposer/get_proc_address.hpp"
#include "interposer/memory_calls.hpp"

namespace gdev {

namespace {

/** Counts calls, and passes them on. */
template <function_id Id, typename Function>
struct counted;

template <function_id Id, typename... Arguments>
struct counted<Id, CUresult(Arguments...)> {
  static CUresult call(Arguments... arguments) noexcept {
    count_call(functions[Id].kind);
    return call_driver<CUresult>(Id, arguments...);
  }
};

}  // namespace

void* wrapper_of(function_id id) noexcept {
  switch (id) {
#define GDEV_COUNTED(name, ...) \
  case id_##name: return reinterpret_cast<void*>(&counted<id_##name, __VA_ARGS__>::call)
    // The headers call these old ones deprecated; drivers have them.
    GDEV_COUNTED(cuLaunch, CUresult(CUfunction));
    GDEV_COUNTED(cuLaunchGrid, CUresult(CUfunction, int, int));
    GDEV_COUNTED(cuLaunchGridAsync, CUresult(CUfunction, int, int, CUstream));
    GDEV_COUNTED(cuLaunchKernel, decltype(cuLaunchKernel));
    GDEV_COUNTED(cuLaunchKernel_ptsz, decltype(cuLaunchKernel));
    GDEV_COUNTED(cuLaunchKernelEx, decltype(cuLaunchKernelEx));
    GDEV_COUNTED(cuLaunchKernelEx_ptsz, decltype(cuLaunchKernelEx));
    GDEV_COUNTED(cuLaunchCooperativeKernel, decltype(cuLaunchCooperativeKernel));
    GDEV_COUNTED(cuLaunchCooperativeKernel_ptsz, decltype(cuLaunchCooperativeKernel));
    GDEV_COUNTED(cuLaunchCooperativeKernelMultiDevice,
                 CUresult(CUDA_LAUNCH_PARAMS*, unsigned, unsigned));
    GDEV_COUNTED(cuGraphLaunch, decltype(cuGraphLaunch));
    GDEV_COUNTED(cuGraphLaunch_ptsz, decltype(cuGraphLaunch));
#undef GDEV_COUNTED
    case id_cuGetProcAddress: return reinterpret_cast<void*>(&get_proc_address);
    case id_cuGetProcAddress_v2:
    case id_cuGetProcAddress_v2_ptsz: return reinterpret_cast<void*>(&get_proc_address_v2);
    default: return memory_wrapper(id);
  }
}

void* missing_function() noexcept {
  // Callers pass arguments that these do not look at, as the calling convention allows.
  static constexpr auto no_driver = []() noexcept { return CUDA_ERROR_NO_DEVICE; };
  static constexpr auto not_in_driver = []() noexcept { return CUDA_ERROR_NOT_SUPPORTED; };
  return *driver_path() == '\0' ? reinterpret_cast<void*>(+no_driver)
                                : reinterpret_cast<void*>(+not_in_driver);
}

}  // namespace gdev

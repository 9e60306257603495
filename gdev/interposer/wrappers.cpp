#include "interposer/wrappers.hpp"

#include <cuda.h>

#include "interposer/context_calls.hpp"
#include "interposer/driver.hpp"
#include "interposer/gated_calls.hpp"
#include "interposer/get_proc_address.hpp"
#include "interposer/graph_memory.hpp"
#include "interposer/handle_calls.hpp"
#include "interposer/ipc.hpp"
#include "interposer/memory_calls.hpp"
#include "interposer/module_calls.hpp"
#include "interposer/pool_calls.hpp"

namespace gdev {

void* wrapper_of(function_id id) noexcept {
  switch (id) {
    case id_cuGetProcAddress: return reinterpret_cast<void*>(&get_proc_address);
    case id_cuGetProcAddress_v2:
    case id_cuGetProcAddress_v2_ptsz: return reinterpret_cast<void*>(&get_proc_address_v2);
    default: break;
  }
  for (void* (*const find)(function_id) noexcept :
       {graph_wrapper, gated_wrapper, memory_wrapper, pool_wrapper, handle_wrapper, context_wrapper,
        ipc_wrapper, module_wrapper}) {
    if (void* const found = find(id); found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

void* missing_function() noexcept {
  // Callers pass arguments that these do not look at, as the calling convention allows.
  static constexpr auto no_driver = []() noexcept { return CUDA_ERROR_NO_DEVICE; };
  static constexpr auto not_in_driver = []() noexcept { return CUDA_ERROR_NOT_SUPPORTED; };
  return *driver_path() == '\0' ? reinterpret_cast<void*>(+no_driver)
                                : reinterpret_cast<void*>(+not_in_driver);
}

}  // namespace gdev

#include "interposer/module_calls.hpp"

#include <cuda.h>

#include "interposer/driver.hpp"
#include "interposer/overhead.hpp"

namespace gdev {

namespace {

template <function_id Id, typename Function>
struct changes_overhead;

template <function_id Id, typename... Arguments>
struct changes_overhead<Id, CUresult(Arguments...)> {
  static CUresult call(Arguments... arguments) noexcept {
    const CUresult result = call_driver<CUresult>(Id, arguments...);
    look_at_overhead();
    return result;
  }
};

}  // namespace

void* module_wrapper(function_id id) noexcept {
  switch (id) {
#define GDEV_CHANGES(name) \
  case id_##name: return reinterpret_cast<void*>(&changes_overhead<id_##name, decltype(name)>::call)
    GDEV_CHANGES(cuModuleLoad);
    GDEV_CHANGES(cuModuleLoadData);
    GDEV_CHANGES(cuModuleLoadDataEx);
    GDEV_CHANGES(cuModuleLoadFatBinary);
    GDEV_CHANGES(cuModuleUnload);
    GDEV_CHANGES(cuLibraryLoadData);
    GDEV_CHANGES(cuLibraryLoadFromFile);
    GDEV_CHANGES(cuLibraryUnload);
    GDEV_CHANGES(cuCtxSetLimit);
#undef GDEV_CHANGES
    default: return nullptr;
  }
}

}  // namespace gdev

#include "calls/driver.hpp"

#include <dlfcn.h>

#include <cerrno>
#include <optional>

namespace gdev::calls {

namespace {

template <typename Function>
bool look_up(void* library, const char* name, Function*& into) noexcept {
  into = reinterpret_cast<Function*>(dlsym(library, name));
  return into != nullptr;
}

std::optional<driver_functions> load() noexcept {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return std::nullopt;
  }
  driver_functions found;
  bool has_all = true;
#define GDEV_QUOTED(name) #name
#define GDEV_LOOK_UP(name) look_up(library, GDEV_QUOTED(name), found.name)
#define GDEV_NEED(name) has_all = GDEV_LOOK_UP(name) && has_all;
#include "calls/driver_functions.inl"
#undef GDEV_NEED
  static_cast<void>(GDEV_LOOK_UP(cuFuncGetParamInfo));
  return has_all ? std::optional(found) : std::nullopt;
}

}  // namespace

const driver_functions* find_driver() noexcept {
  static const std::optional<driver_functions> found = load();
  return found ? &*found : nullptr;
}

int error_of(CUresult result) noexcept {
  switch (result) {
    case CUDA_SUCCESS: return 0;
    case CUDA_ERROR_OUT_OF_MEMORY: return -ENOMEM;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: return -EINVAL;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND: return -ENOEXEC;
    case CUDA_ERROR_NOT_FOUND: return -ENOENT;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_INITIALIZED: return -ENODEV;
    case CUDA_ERROR_SYSTEM_NOT_READY: return -ENOTCONN;
    case CUDA_ERROR_MAP_FAILED: return -ENXIO;
    case CUDA_ERROR_NOT_SUPPORTED: return -ENOTSUP;
    default: return -EIO;
  }
}

}  // namespace gdev::calls

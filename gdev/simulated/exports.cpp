#include "simulated/exports.hpp"

#include <cstring>
#include <map>
#include <string>

namespace gdev::simulated {

namespace {

std::map<std::string, void*, std::less<>>& exports() {
  // Made by the first registration, in whatever order the library's objects are initialised.
  static std::map<std::string, void*, std::less<>> all;
  return all;
}

/** Returns the newest version of a function, for one kind of default stream. */
void* find_newest(std::string_view symbol, bool per_thread) {
  for (const char* const stream : {"_ptsz", "_ptds", ""}) {
    if (!per_thread && *stream != '\0') {
      continue;
    }
    for (const char* const version : {"_v4", "_v3", "_v2", ""}) {
      void* const found = find_export(std::string(symbol) + version + stream);
      if (found != nullptr) {
        return found;
      }
    }
  }
  return nullptr;
}

}  // namespace

registration::registration(const char* name, void* address) { exports()[name] = address; }

void* find_export(std::string_view name) noexcept {
  const auto found = exports().find(name);
  return found == exports().end() ? nullptr : found->second;
}

}  // namespace gdev::simulated

#undef cuGetProcAddress

GDEV_EXPORT(cuGetProcAddress_v2, const char* symbol, void** function, int version, cuuint64_t flags,
            CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *function = std::strcmp(symbol, "cuGetProcAddress") == 0 && version < 12000
                  ? gdev::simulated::find_export(symbol)
                  : gdev::simulated::find_newest(symbol, per_thread);
  if (status != nullptr) {
    *status =
        *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

GDEV_EXPORT(cuGetProcAddress, const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

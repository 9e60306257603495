/**
 * A program that opens the driver's library and asks for functions by name:
 * opened PTX NAME HOW [FUNCTION...]
 *
 * NAME: what it opens. HOW: "names" (dlsym), "addresses" (cuGetProcAddress), "per-thread" (the
 * same, with per-thread default streams), "space" (dlmopen into a new name space). It also asks for
 * each FUNCTION, in the same way, and prints "found" or "missing" for it.
 */
#include <cstring>
#include <string_view>

#include "clients/work.hpp"

namespace {

void* library;
std::string_view how;
decltype(&cuGetProcAddress) get_address;

void* find(const char* name, const char* exported) {
  if (get_address == nullptr) {
    return dlsym(library, exported);
  }
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  const cuuint64_t flags = how == "per-thread" ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
  get_address(name, &found, CUDA_VERSION, flags, &status);
  return found;
}

}  // namespace

int main(int count, char** arguments) {
  how = arguments[3];
  library = how == "space" ? dlmopen(LM_ID_NEWLM, arguments[2], RTLD_NOW)
                           : dlopen(arguments[2], RTLD_NOW);
  if (library == nullptr) {
    std::printf("{\"failed\": \"dlopen\", \"error\": \"%s\"}\n", dlerror());
    return 1;
  }
  if (how == "addresses" || how == "per-thread") {
    const auto first =
        reinterpret_cast<decltype(get_address)>(dlsym(library, "cuGetProcAddress_v2"));
    void* found = nullptr;
    // As the runtime does: it asks for the function that it asks with.
    check(first("cuGetProcAddress", &found, CUDA_VERSION, 0, nullptr), "cuGetProcAddress");
    get_address = reinterpret_cast<decltype(get_address)>(found);
  }
  const driver_calls calls{
      reinterpret_cast<decltype(&cuInit)>(find("cuInit", "cuInit")),
      reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(
          find("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain")),
      reinterpret_cast<decltype(&cuCtxSetCurrent)>(find("cuCtxSetCurrent", "cuCtxSetCurrent")),
      reinterpret_cast<decltype(&cuMemAlloc)>(find("cuMemAlloc", "cuMemAlloc_v2")),
      reinterpret_cast<decltype(&cuMemFree)>(find("cuMemFree", "cuMemFree_v2")),
      reinterpret_cast<decltype(&cuMemsetD32)>(find("cuMemsetD32", "cuMemsetD32_v2")),
      reinterpret_cast<decltype(&cuMemcpyDtoH)>(find("cuMemcpyDtoH", "cuMemcpyDtoH_v2")),
      reinterpret_cast<decltype(&cuModuleLoadData)>(find("cuModuleLoadData", "cuModuleLoadData")),
      reinterpret_cast<decltype(&cuModuleGetFunction)>(
          find("cuModuleGetFunction", "cuModuleGetFunction")),
      reinterpret_cast<decltype(&cuLaunchKernel)>(find("cuLaunchKernel", "cuLaunchKernel"))};
  const std::uint64_t sum = compute(calls, arguments[1]);
  for (int i = 4; i < count; ++i) {
    std::printf("%s %s\n", arguments[i],
                find(arguments[i], arguments[i]) != nullptr ? "found" : "missing");
  }
  print_status(sum);
}

/** What the loader tests' programs do, however they found the driver: fill memory and add it up. */
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "gdev/status.h"

/** The functions that the programs call, in whatever way they got them. */
struct driver_calls {
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuMemAlloc) allocate;
  decltype(&cuMemFree) free;
  decltype(&cuMemsetD32) set;
  decltype(&cuMemcpyDtoH) copy_back;
  decltype(&cuModuleLoadData) load;
  decltype(&cuModuleGetFunction) function;
  decltype(&cuLaunchKernel) launch;
};

/** Ends the program if a call failed. */
inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::printf("{\"failed\": \"%s\", \"error\": %d}\n", what, static_cast<int>(result));
    std::exit(1);
  }
}

/** Launches two kernels. Returns the sum of 1,000 numbers, each 3. */
inline std::uint64_t compute(const driver_calls& call, const char* ptx_file) {
  CUcontext context = nullptr;
  check(call.init(0), "cuInit");
  check(call.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(call.set_current(context), "cuCtxSetCurrent");
  std::ifstream file(ptx_file);
  const std::string ptx{std::istreambuf_iterator<char>(file), {}};
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUfunction sum = nullptr;
  check(call.load(&module, ptx.c_str()), "cuModuleLoadData");
  check(call.function(&fill, module, "gdev_fill"), "cuModuleGetFunction");
  check(call.function(&sum, module, "gdev_sum"), "cuModuleGetFunction");
  CUdeviceptr values = 0;
  CUdeviceptr result = 0;
  std::uint64_t count = 1000;
  std::uint32_t value = 3;
  check(call.allocate(&values, count * sizeof value), "cuMemAlloc");
  check(call.allocate(&result, sizeof(std::uint64_t)), "cuMemAlloc");
  check(call.set(result, 0, 2), "cuMemsetD32");
  void* fill_parameters[] = {&values, &count, &value};
  check(call.launch(fill, 4, 1, 1, 64, 1, 1, 0, nullptr, fill_parameters, nullptr),
        "cuLaunchKernel");
  void* sum_parameters[] = {&values, &count, &result};
  check(call.launch(sum, 4, 1, 1, 64, 1, 1, 0, nullptr, sum_parameters, nullptr), "cuLaunchKernel");
  std::uint64_t copied = 0;
  check(call.copy_back(&copied, result, sizeof copied), "cuMemcpyDtoH");
  check(call.free(values), "cuMemFree");
  check(call.free(result), "cuMemFree");
  return copied;
}

/** Prints what gdev says of this process, as JSON; "gdev": false if it does not run under gdev. */
inline void print_status(std::uint64_t sum) {
  const auto ask = reinterpret_cast<decltype(&gdev_status)>(dlsym(RTLD_DEFAULT, "gdev_status"));
  const auto unknown = reinterpret_cast<decltype(&gdev_unknown_function)>(
      dlsym(RTLD_DEFAULT, "gdev_unknown_function"));
  if (ask == nullptr) {
    std::printf("{\"gdev\": false, \"sum\": %lu}\n", sum);
    return;
  }
  gdev_status_t status{};
  status.size = sizeof status;
  if (ask(&status) != 0) {
    std::exit(1);
  }
  std::printf(
      "{\"gdev\": true, \"sum\": %lu, \"driver\": \"%s\", \"launches\": %lu, "
      "\"lookups\": %lu, \"bypasses\": %lu, \"unknown\": [",
      sum, status.driver, status.launches, status.lookups, status.bypasses);
  for (std::size_t i = 0; unknown(i) != nullptr; ++i) {
    std::printf("%s\"%s\"", i == 0 ? "" : ", ", unknown(i));
  }
  std::printf("], \"unknown_calls\": %lu}\n", status.unknown_functions);
}

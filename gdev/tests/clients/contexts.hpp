/** Contexts, and other functions' addresses, for the programs that take lines. */
#pragma once

#include <cuda.h>

/** Makes the first device's primary context the current one. */
inline CUresult use_primary_context() {
  CUcontext context = nullptr;
  const CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
  return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

inline CUresult init() {
  const CUresult result = cuInit(0);
  return result == CUDA_SUCCESS ? use_primary_context() : result;
}

inline CUresult make_context() {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  return cuCtxCreate(&context, nullptr, 0, 0);
#else
  return cuCtxCreate(&context, 0, 0);
#endif
}

/** Returns the function for per-thread default streams. */
template <typename Function>
Function of_thread(const char* name) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  cuGetProcAddress(name, &found, CUDA_VERSION, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                   &status);
  return reinterpret_cast<Function>(found);
}

// Calls of the CUDA runtime and of the driver: errors as exceptions, and driver functions by name.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cerrno>
#include <string>

#include "gpufs/error.hpp"

namespace gpufs {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw error(status == cudaErrorMemoryAllocation ? ENOMEM : EIO,
              std::string(what) + ": " + cudaGetErrorString(status));
}

// Looks up a driver function by name: the build machine may have no libcuda to link against.
template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &f, version, cudaEnableDefault, &found), name);
  if (found != cudaDriverEntryPointSuccess || f == nullptr)
    throw error(ENOTSUP, std::string(name) + ": not in this driver");
  return reinterpret_cast<Function>(f);
}

inline void check(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  throw error(status == CUDA_ERROR_OUT_OF_MEMORY ? ENOMEM : EIO,
              std::string(what) + ": CUDA driver error " + std::to_string(status));
}

}  // namespace gpufs

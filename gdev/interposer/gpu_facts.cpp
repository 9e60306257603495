#include <cuda.h>

#include <cstdint>

#include "base/fnv.hpp"
#include "interposer/driver.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

gpu_facts look_at_gpu() noexcept {
  CUdevice device = 0;
  CUuuid id{};
  std::size_t free = 0;
  std::size_t total = 0;
  if (call_driver<CUresult>(id_cuCtxGetDevice, &device) != CUDA_SUCCESS ||
      (call_driver<CUresult>(id_cuDeviceGetUuid_v2, &id, device) != CUDA_SUCCESS &&
       call_driver<CUresult>(id_cuDeviceGetUuid, &id, device) != CUDA_SUCCESS) ||
      call_driver<CUresult>(id_cuMemGetInfo_v2, &free, &total) != CUDA_SUCCESS) {
    return {};
  }
  return {fnv_1a(id.bytes) | 1, total, free};
}

}  // namespace gdev

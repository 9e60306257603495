#include <cuda.h>

#include <cstdint>

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
  std::uint64_t number = 0xcbf29ce484222325;  // FNV-1a: one number for each GPU, in all processes
  for (const char byte : id.bytes) {
    number = (number ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return {number | 1, total, free};
}

}  // namespace gdev

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/fnv.hpp"
#include "base/saturating.hpp"
#include "interposer/driver.hpp"
#include "interposer/swappable_memory.hpp"
#include "protocol/account.hpp"

namespace gdev {

namespace {

/** What the driver says is free on the GPU where turns are taken, and does not give. */
std::atomic<std::uint64_t> withheld = 0;

}  // namespace

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
  return {fnv_1a(id.bytes) | 1, total, less(free, withheld.load(std::memory_order_relaxed))};
}

gpu_facts look_again_at_gpu(std::uint64_t refused, unsigned refusals) noexcept {
  gpu_facts seen = look_at_gpu();
  if (refusals > 1 && seen.free >= refused) {
    // It was asked for chunks, so it would have given all of it but less than one.
    const std::uint64_t left = refused - std::min(refused, chunk_bytes_max);
    withheld.fetch_add(seen.free - left, std::memory_order_relaxed);
    seen.free = left;
  }
  return seen;
}

}  // namespace gdev

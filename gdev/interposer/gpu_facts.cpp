#include "interposer/gpu_facts.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "base/fnv.hpp"
#include "base/saturating.hpp"
#include "interposer/driver.hpp"

namespace gdev {

namespace {

/** What the GPU has free and does not give, for requests of this thread (refused_chunks). */
constinit thread_local std::uint64_t withheld = 0;

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
  return {fnv_1a(id.bytes) | 1, total, less(free, withheld)};
}

refused_chunks::refused_chunks() noexcept { withheld = 0; }

refused_chunks::~refused_chunks() { withheld = 0; }

gpu_facts refused_chunks::look(std::uint64_t refused) noexcept {
  gpu_facts seen = look_at_gpu();
  if (++refusals_ > 1 && seen.free >= refused) {
    // How much it keeps shows only when it gives again: a little more with each refusal.
    constexpr std::uint64_t granularity = std::uint64_t{2} << 20;
    const std::uint64_t step = granularity << std::min(refusals_ - 2, 16U);
    const std::uint64_t left = refused - std::min(refused, step);
    withheld += seen.free - left;
    seen.free = left;
  }
  return seen;
}

}  // namespace gdev

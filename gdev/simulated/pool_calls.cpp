/** The simulated driver: pools. They keep nothing: what is freed goes back at once. */
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "simulated/device.hpp"
#include "simulated/exports.hpp"

namespace gdev::simulated {

namespace {

struct pool {
  CUmemPoolProps properties{};
  cuuint64_t threshold = 0;
  std::map<CUmemPool_attribute, int> flags;  // that were set; others are 1
  std::vector<CUmemAccessDesc> access;
};

struct all_pools {
  all_pools() {
    for (CUdevice gpu = 0; gpu < the_device().count(); ++gpu) {
      auto made = std::make_unique<pool>();
      made->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      made->properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu};
      first.push_back(reinterpret_cast<CUmemoryPool>(made.get()));
      pools[first.back()] = std::move(made);
    }
    current = first;
  }

  [[nodiscard]] pool* find(CUmemoryPool handle) {
    const auto found = pools.find(handle);
    return found == pools.end() ? nullptr : found->second.get();
  }

  std::mutex mutex;  // guards all below
  std::map<CUmemoryPool, std::unique_ptr<pool>> pools;
  // By GPU: its default, and the one in use.
  std::vector<CUmemoryPool> first;
  std::vector<CUmemoryPool> current;
};

all_pools& pools() {
  static auto* const only = new all_pools;  // never ended, as the device
  return *only;
}

std::size_t index(CUdevice gpu) noexcept { return static_cast<std::size_t>(gpu); }

}  // namespace

CUresult allocate_from(CUmemoryPool from, CUdeviceptr* address, std::size_t bytes) {
  std::vector<CUmemAccessDesc> given;
  CUdevice gpu = 0;
  {
    const std::lock_guard lock(pools().mutex);
    const pool* const found = pools().find(from);
    if (found == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    given = found->access;
    gpu = found->properties.location.id;
  }
  CUresult result = the_device().allocate(address, bytes, gpu);
  CUdeviceptr base = 0;
  result = result == CUDA_SUCCESS ? the_device().range_of(&base, &bytes, *address) : result;
  for (const CUmemAccessDesc& one : given) {
    result = result == CUDA_SUCCESS ? the_device().set_access(base, bytes, one) : result;
  }
  return result;
}

}  // namespace gdev::simulated

using gdev::simulated::index;
using gdev::simulated::pool;
using gdev::simulated::pools;
using gdev::simulated::the_device;

GDEV_EXPORT(cuDeviceGetDefaultMemPool, CUmemoryPool* found, CUdevice device) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *found = pools().first[index(device)];
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceGetMemPool, CUmemoryPool* found, CUdevice device) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const std::lock_guard lock(pools().mutex);
  *found = pools().current[index(device)];
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceSetMemPool, CUdevice device, CUmemoryPool chosen) {
  const std::lock_guard lock(pools().mutex);
  const pool* const found = pools().find(chosen);
  if (found == nullptr || found->properties.location.id != device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pools().current[index(device)] = chosen;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemPoolCreate, CUmemoryPool* made, const CUmemPoolProps* properties) {
  auto owner = std::make_unique<pool>();
  owner->properties = *properties;
  if (!the_device().has(properties->location.id)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const std::lock_guard lock(pools().mutex);
  *made = reinterpret_cast<CUmemoryPool>(owner.get());
  pools().pools[*made] = std::move(owner);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemPoolDestroy, CUmemoryPool ended) {
  const std::lock_guard lock(pools().mutex);
  const std::vector<CUmemoryPool>& first = pools().first;
  if (std::find(first.begin(), first.end(), ended) != first.end() ||
      pools().pools.erase(ended) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t gpu = 0; gpu < first.size(); ++gpu) {
    CUmemoryPool& current = pools().current[gpu];
    current = current == ended ? first[gpu] : current;
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemPoolTrimTo, CUmemoryPool which, std::size_t /*kept*/) {
  const std::lock_guard lock(pools().mutex);
  return pools().find(which) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemPoolSetAttribute, CUmemoryPool which, CUmemPool_attribute what, void* value) {
  const std::lock_guard lock(pools().mutex);
  pool* const found = pools().find(which);
  if (found == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (what) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      found->threshold = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      found->flags[what] = *static_cast<int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return *static_cast<cuuint64_t*>(value) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

GDEV_EXPORT(cuMemPoolGetAttribute, CUmemoryPool which, CUmemPool_attribute what, void* value) {
  const std::lock_guard lock(pools().mutex);
  const pool* const found = pools().find(which);
  if (found == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (what) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = found->threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      const auto flag = found->flags.find(what);
      *static_cast<int*>(value) = flag == found->flags.end() ? 1 : flag->second;
      return CUDA_SUCCESS;
    }
    default: *static_cast<cuuint64_t*>(value) = 0; return CUDA_SUCCESS;  // it keeps nothing
  }
}

GDEV_EXPORT(cuMemPoolSetAccess, CUmemoryPool which, const CUmemAccessDesc* access,
            std::size_t count) {
  const std::lock_guard lock(pools().mutex);
  pool* const found = pools().find(which);
  if (found == nullptr || access == nullptr || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->access.insert(found->access.end(), access, access + count);
  return CUDA_SUCCESS;
}

/** The simulated driver: pools. They keep nothing: what is freed goes back at once. */
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
    auto made = std::make_unique<pool>();
    made->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    first = current = reinterpret_cast<CUmemoryPool>(made.get());
    pools[first] = std::move(made);
  }

  [[nodiscard]] pool* find(CUmemoryPool handle) {
    const auto found = pools.find(handle);
    return found == pools.end() ? nullptr : found->second.get();
  }

  std::mutex mutex;  // guards all below
  std::map<CUmemoryPool, std::unique_ptr<pool>> pools;
  CUmemoryPool first = nullptr;  // the device's default
  CUmemoryPool current = nullptr;
};

all_pools& pools() {
  static auto* const only = new all_pools;  // never ended, as the device
  return *only;
}

}  // namespace

CUresult give_pool_access(CUmemoryPool from, CUdeviceptr address) {
  std::vector<CUmemAccessDesc> given;
  {
    const std::lock_guard lock(pools().mutex);
    if (const pool* const found = pools().find(from); found != nullptr) {
      given = found->access;
    }
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUresult result = the_device().range_of(&base, &bytes, address);
  for (const CUmemAccessDesc& one : given) {
    result = result == CUDA_SUCCESS ? the_device().set_access(base, bytes, one) : result;
  }
  return result;
}

}  // namespace gdev::simulated

using gdev::simulated::pool;
using gdev::simulated::pools;

GDEV_EXPORT(cuDeviceGetDefaultMemPool, CUmemoryPool* found, CUdevice /*device*/) {
  *found = pools().first;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceGetMemPool, CUmemoryPool* found, CUdevice /*device*/) {
  const std::lock_guard lock(pools().mutex);
  *found = pools().current;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceSetMemPool, CUdevice /*device*/, CUmemoryPool chosen) {
  const std::lock_guard lock(pools().mutex);
  if (pools().find(chosen) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pools().current = chosen;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemPoolCreate, CUmemoryPool* made, const CUmemPoolProps* properties) {
  auto owner = std::make_unique<pool>();
  owner->properties = *properties;
  const std::lock_guard lock(pools().mutex);
  *made = reinterpret_cast<CUmemoryPool>(owner.get());
  pools().pools[*made] = std::move(owner);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemPoolDestroy, CUmemoryPool ended) {
  const std::lock_guard lock(pools().mutex);
  if (ended == pools().first || pools().pools.erase(ended) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pools().current = pools().current == ended ? pools().first : pools().current;
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

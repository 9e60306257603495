#include "interposer/pool_calls.hpp"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "interposer/driver.hpp"
#include "interposer/pools.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

CUresult pool_create(CUmemoryPool* pool, const CUmemPoolProps* properties) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuMemPoolCreate, pool, properties);
  if (result == CUDA_SUCCESS) {
    pools().add_new(*pool, *properties);
  }
  return result;
}

CUresult pool_destroy(CUmemoryPool pool) noexcept {
  // It stays in the table meanwhile: the driver refuses to destroy default pools, and other threads
  // may use them.
  const std::shared_ptr<stream_pools::pool> own = pools().get(pool);
  const CUresult result = call_driver<CUresult>(id_cuMemPoolDestroy, pool);
  if (own != nullptr && result == CUDA_SUCCESS) {
    pools().destroy(own);
  }
  return result;
}

CUresult pool_trim(CUmemoryPool pool, std::size_t kept) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuMemPoolTrimTo, pool, kept);
  if (result == CUDA_SUCCESS) {
    pools().trim(pool, kept);
  }
  return result;
}

CUresult pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuMemPoolSetAttribute, pool, which, value);
  if (result == CUDA_SUCCESS) {
    pools().know(pool);
    pools().set(pool, which, value);
  }
  return result;
}

CUresult pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuMemPoolGetAttribute, pool, which, value);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  // The driver has what gdev does not serve.
  const auto add = [&](std::uint64_t pool_amounts::* amount) {
    *static_cast<cuuint64_t*>(value) += pools().amounts(pool).*amount;
  };
  switch (which) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: add(&pool_amounts::reserved); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: add(&pool_amounts::reserved_high); break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: add(&pool_amounts::used); break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: add(&pool_amounts::used_high); break;
    default: break;
  }
  return result;
}

CUresult pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* access,
                         std::size_t count) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuMemPoolSetAccess, pool, access, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  pools().know(pool);
  return pools().share(pool, access, count);
}

/** After it, pools give back what is beyond their thresholds. */
template <function_id Id, typename... Arguments>
CUresult synchronize(Arguments... arguments) noexcept {
  const CUresult result = call_driver<CUresult>(Id, arguments...);
  if (result == CUDA_SUCCESS) {
    pools().release_unused();
  }
  return result;
}

}  // namespace

void* pool_wrapper(function_id id) noexcept {
  switch (id) {
    case id_cuMemPoolCreate: return address_of(&pool_create);
    case id_cuMemPoolDestroy: return address_of(&pool_destroy);
    case id_cuMemPoolTrimTo: return address_of(&pool_trim);
    case id_cuMemPoolSetAttribute: return address_of(&pool_set_attribute);
    case id_cuMemPoolGetAttribute: return address_of(&pool_get_attribute);
    case id_cuMemPoolSetAccess: return address_of(&pool_set_access);
    case id_cuStreamSynchronize: return address_of(&synchronize<id_cuStreamSynchronize, CUstream>);
    case id_cuStreamSynchronize_ptsz:
      return address_of(&synchronize<id_cuStreamSynchronize_ptsz, CUstream>);
    case id_cuEventSynchronize: return address_of(&synchronize<id_cuEventSynchronize, CUevent>);
    case id_cuCtxSynchronize: return address_of(&synchronize<id_cuCtxSynchronize>);
    case id_cuCtxSynchronize_v2: return address_of(&synchronize<id_cuCtxSynchronize_v2, CUcontext>);
    default: return nullptr;
  }
}

}  // namespace gdev

#include "interposer/handle_calls.hpp"

#include <cuda.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/handles.hpp"
#include "interposer/ledger.hpp"
#include "interposer/pools.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/with_account.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

using handle_type = CUmemGenericAllocationHandle;

bool is_virtual(handle_type handle) noexcept { return virtual_handles::is_virtual(handle); }

// --- Handles ---

CUresult mem_create(handle_type* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long flags) noexcept {
  const auto create = [&](const std::shared_ptr<holding>& /*held*/) {
    return call_driver<CUresult>(id_cuMemCreate, handle, bytes, properties, flags);
  };
  // Chunks may lie in the host's memory too.
  if (properties == nullptr || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return create(nullptr);
  }
  if (virtual_handles::are_possible(*properties, flags)) {
    return with_swappable_account(bytes, [&](const std::shared_ptr<holding>& held) {
      return handles().create(handle, bytes, *properties, held);
    });
  }
  const memory_place where = swappable().place_on(properties->location.id);
  return with_account(bytes, where, create, [&](std::shared_ptr<holding> held) {
    chunks().add(*handle, std::move(held));
  });
}

CUresult mem_release(handle_type handle) noexcept {
  if (is_virtual(handle)) {
    return handles().release(handle);
  }
  const std::shared_ptr<holding> held = chunks().release(handle);
  const CUresult result = call_driver<CUresult>(id_cuMemRelease, handle);
  if (result != CUDA_SUCCESS && held != nullptr) {
    chunks().add(handle, held);
  }
  return result;
}

CUresult mem_retain(handle_type* handle, void* address) noexcept {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  if (handle == nullptr || swappable().find(at, nullptr, nullptr) || pools().find(at)) {
    return CUDA_ERROR_INVALID_VALUE;  // as for all that cuMemAlloc() and pools have made
  }
  if (const handle_type found = handles().retain(at); found != 0) {
    *handle = found;
    return CUDA_SUCCESS;
  }
  const CUresult result = call_driver<CUresult>(id_cuMemRetainAllocationHandle, handle, address);
  if (result == CUDA_SUCCESS) {
    chunks().retain(*handle, at);
  }
  return result;
}

CUresult get_properties(CUmemAllocationProp* properties, handle_type handle) noexcept {
  return is_virtual(handle)
             ? handles().properties(properties, handle)
             : call_driver<CUresult>(id_cuMemGetAllocationPropertiesFromHandle, properties, handle);
}

CUresult export_handle(void* shared, handle_type handle, CUmemAllocationHandleType type,
                       unsigned long long flags) noexcept {
  return is_virtual(handle)
             ? handles().export_to(shared, handle, type, flags)
             : call_driver<CUresult>(id_cuMemExportToShareableHandle, shared, handle, type, flags);
}

// --- Mappings ---

/** Tells whether a range has some of what gdev has mapped for an allocation: the driver refuses
 * calls for mappings of programs there. */
bool has_allocation(CUdeviceptr address, std::size_t bytes) {
  return swappable().reaches_into(address, bytes) || pools().reaches_into(address, bytes);
}

CUresult address_free(CUdeviceptr address, std::size_t bytes) noexcept {
  // The driver refuses that while something is mapped. What is off the GPU is mapped for programs.
  return has_allocation(address, bytes) || handles().has_mapped(address, bytes)
             ? CUDA_ERROR_INVALID_VALUE
             : call_driver<CUresult>(id_cuMemAddressFree, address, bytes);
}

CUresult mem_map(CUdeviceptr address, std::size_t bytes, std::size_t offset, handle_type handle,
                 unsigned long long flags) noexcept {
  if (has_allocation(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_virtual(handle)) {
    return handles().map(address, bytes, offset, handle, flags);
  }
  if (handles().has_mapped(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = call_driver<CUresult>(id_cuMemMap, address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) {
    chunks().map(address, bytes, handle);
  }
  return result;
}

CUresult mem_unmap(CUdeviceptr address, std::size_t bytes) noexcept {
  if (has_allocation(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  chunk_ledger::mappings unmapped = chunks().unmap(address, bytes);
  const CUresult result = handles().has_mapped(address, bytes)
                              ? handles().unmap(address, bytes)
                              : call_driver<CUresult>(id_cuMemUnmap, address, bytes);
  if (result != CUDA_SUCCESS) {
    chunks().put_back(std::move(unmapped));
  }
  return result;
}

CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* wanted,
                    std::size_t count) noexcept {
  if (has_allocation(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return handles().has_mapped(address, bytes)
             ? handles().set_access(address, bytes, wanted, count)
             : call_driver<CUresult>(id_cuMemSetAccess, address, bytes, wanted, count);
}

CUresult get_access(unsigned long long* flags, const CUmemLocation* location,
                    CUdeviceptr address) noexcept {
  std::optional<submission> in_turn;
  if (pools().find(address)) {
    in_turn.emplace(work::other);  // while it is off the GPU, the driver finds nothing there
  }
  return location != nullptr && handles().has_mapped(address)
             ? handles().access(flags, *location, address)
             : call_driver<CUresult>(id_cuMemGetAccess, flags, location, address);
}

// --- Memory that arrays and multicast objects use: it stays on the GPU ---

/** Replaces a virtual handle by the driver's. */
CUresult wire(handle_type& handle) noexcept {
  return is_virtual(handle) ? handles().wire(handle, &handle) : CUDA_SUCCESS;
}

template <function_id Id>
CUresult map_array(CUarrayMapInfo* wanted, unsigned count, CUstream stream) noexcept {
  std::vector<CUarrayMapInfo> all;
  if (wanted != nullptr) {
    all.assign(wanted, wanted + count);
  }
  for (CUarrayMapInfo& one : all) {
    const CUresult result = one.memOperationType == CU_MEM_OPERATION_TYPE_MAP
                                ? wire(one.memHandle.memHandle)
                                : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
      return result;
    }
  }
  CUarrayMapInfo* const given = wanted == nullptr ? nullptr : all.data();
  return call_driver<CUresult>(Id, given, count, stream);
}

// These wait until the object has all its devices. So they hold no submission.

CUresult bind_memory(handle_type object, std::size_t object_offset, handle_type handle,
                     std::size_t offset, std::size_t bytes, unsigned long long flags) noexcept {
  const CUresult result = is_virtual(object) ? CUDA_ERROR_INVALID_VALUE : wire(handle);
  return result != CUDA_SUCCESS
             ? result
             : call_driver<CUresult>(id_cuMulticastBindMem, object, object_offset, handle, offset,
                                     bytes, flags);
}

CUresult bind_address(handle_type object, std::size_t object_offset, CUdeviceptr address,
                      std::size_t bytes, unsigned long long flags) noexcept {
  if (is_virtual(object)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wire_memory(address, bytes);
  return call_driver<CUresult>(id_cuMulticastBindAddr, object, object_offset, address, bytes,
                               flags);
}

CUresult add_device(handle_type object, CUdevice device) noexcept {
  return is_virtual(object) ? CUDA_ERROR_INVALID_VALUE
                            : call_driver<CUresult>(id_cuMulticastAddDevice, object, device);
}

CUresult unbind(handle_type object, CUdevice device, std::size_t offset,
                std::size_t bytes) noexcept {
  return is_virtual(object)
             ? CUDA_ERROR_INVALID_VALUE
             : call_driver<CUresult>(id_cuMulticastUnbind, object, device, offset, bytes);
}

}  // namespace

void* handle_wrapper(function_id id) noexcept {
  switch (id) {
    case id_cuMemCreate: return address_of(&mem_create);
    case id_cuMemRelease: return address_of(&mem_release);
    case id_cuMemRetainAllocationHandle: return address_of(&mem_retain);
    case id_cuMemGetAllocationPropertiesFromHandle: return address_of(&get_properties);
    case id_cuMemExportToShareableHandle: return address_of(&export_handle);
    case id_cuMemAddressFree: return address_of(&address_free);
    case id_cuMemMap: return address_of(&mem_map);
    case id_cuMemUnmap: return address_of(&mem_unmap);
    case id_cuMemSetAccess: return address_of(&set_access);
    case id_cuMemGetAccess: return address_of(&get_access);
    case id_cuMemMapArrayAsync: return address_of(&map_array<id_cuMemMapArrayAsync>);
    case id_cuMemMapArrayAsync_ptsz: return address_of(&map_array<id_cuMemMapArrayAsync_ptsz>);
    case id_cuMulticastAddDevice: return address_of(&add_device);
    case id_cuMulticastBindMem: return address_of(&bind_memory);
    case id_cuMulticastBindAddr: return address_of(&bind_address);
    case id_cuMulticastUnbind: return address_of(&unbind);
    default: return nullptr;
  }
}

}  // namespace gdev

#include "interposer/chunk.hpp"

#include <algorithm>
#include <utility>

#include "base/crash_point.hpp"
#include "interposer/driver.hpp"
#include "interposer/host_pool.hpp"

namespace gdev {

namespace {

CUresult map(CUdeviceptr address, const chunk& mapped, const std::vector<CUmemAccessDesc>& access) {
  CUresult result = call_driver<CUresult>(id_cuMemMap, address, mapped.bytes, std::size_t{0},
                                          mapped.handle, 0ULL);
  if (result == CUDA_SUCCESS && !access.empty()) {
    result = call_driver<CUresult>(id_cuMemSetAccess, address, mapped.bytes, access.data(),
                                   access.size());
    if (result != CUDA_SUCCESS) {
      call_driver<CUresult>(id_cuMemUnmap, address, mapped.bytes);
    }
  }
  return result;
}

CUmemLocation host_near(CUdevice device) noexcept {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (call_driver<CUresult>(id_cuDeviceGetAttribute, &location.id, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
                            device) != CUDA_SUCCESS ||
      location.id < 0) {
    location.id = 0;
  }
  return location;
}

}  // namespace

chunk::chunk(const CUmemAllocationProp& wanted, std::size_t size, CUcontext used,
             const std::shared_ptr<holding>& held)
    : properties(wanted), bytes(size), context(used),
      on_host(held != nullptr && held->is_on_host() ? held : nullptr) {
  for (std::size_t at = 0; at < bytes; at += host_pool::segment_bytes) {
    places.push_back({at, std::min(host_pool::segment_bytes, bytes - at)});
  }
}

CUdeviceptr chunk::address() const noexcept {
  for (const mapping& one : mappings) {
    for (const CUmemAccessDesc& given : one.access) {
      if (given.location.type == CU_MEM_LOCATION_TYPE_DEVICE && given.location.id == device() &&
          given.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return one.address;
      }
    }
  }
  return window;
}

CUresult make(chunk& made) {
  CUmemAllocationProp wanted = made.properties;
  if (made.on_host != nullptr) {
    wanted.location = host_near(made.device());
    wanted.allocFlags.gpuDirectRDMACapable = 0;
  }
  CUresult result = call_driver<CUresult>(id_cuMemCreate, &made.handle, made.bytes,
                                          static_cast<const CUmemAllocationProp*>(&wanted), 0ULL);
  std::size_t mapped = 0;
  crash_point("chunk_made");
  while (result == CUDA_SUCCESS && mapped < made.mappings.size()) {
    result = map(made.mappings[mapped].address, made, made.mappings[mapped].access);
    mapped += result == CUDA_SUCCESS ? 1 : 0;
    crash_point("chunk_mapped");
  }
  if (result != CUDA_SUCCESS && made.handle != 0) {
    while (mapped-- != 0) {
      call_driver<CUresult>(id_cuMemUnmap, made.mappings[mapped].address, made.bytes);
    }
    call_driver<CUresult>(id_cuMemRelease, made.handle);
  }
  made.handle = result == CUDA_SUCCESS ? made.handle : 0;
  return result;
}

void release(chunk& gone) {
  close_window(gone);
  if (gone.handle == 0) {
    return;
  }
  for (const mapping& one : gone.mappings) {
    call_driver<CUresult>(id_cuMemUnmap, one.address, gone.bytes);
    crash_point("chunk_unmapped");
  }
  call_driver<CUresult>(id_cuMemRelease, std::exchange(gone.handle, 0));
  crash_point("chunk_released");
}

CUresult open_window(chunk& seen) {
  if (seen.address() != 0) {
    return CUDA_SUCCESS;
  }
  CUdeviceptr made = 0;
  CUresult result = call_driver<CUresult>(id_cuMemAddressReserve, &made, seen.bytes, std::size_t{0},
                                          CUdeviceptr{0}, 0ULL);
  if (result == CUDA_SUCCESS) {
    result = map(made, seen, {{seen.properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}});
    if (result != CUDA_SUCCESS) {
      call_driver<CUresult>(id_cuMemAddressFree, made, seen.bytes);
    }
  }
  seen.window = result == CUDA_SUCCESS ? made : 0;
  return result;
}

void close_window(chunk& seen) {
  if (const CUdeviceptr gone = std::exchange(seen.window, 0); gone != 0) {
    call_driver<CUresult>(id_cuMemUnmap, gone, seen.bytes);
    call_driver<CUresult>(id_cuMemAddressFree, gone, seen.bytes);
  }
}

}  // namespace gdev

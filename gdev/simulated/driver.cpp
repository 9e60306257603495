/** The simulated driver: initialization, the GPUs, memory. */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "simulated/device.hpp"
#include "simulated/exports.hpp"

namespace gdev::simulated {

namespace {

std::atomic<bool> is_initialized;
std::atomic<bool> has_ended;  // with the process, as the vendor's driver does

}  // namespace

}  // namespace gdev::simulated

using gdev::simulated::current_gpu;
using gdev::simulated::has_ended;
using gdev::simulated::is_initialized;
using gdev::simulated::the_device;

GDEV_EXPORT(cuInit, unsigned flags) {
  if (!is_initialized.exchange(true)) {
    static_cast<void>(std::atexit([] { has_ended = true; }));
  }
  return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GDEV_EXPORT(cuDriverGetVersion, int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGetExportTable, const void** table, const CUuuid* /*id*/) {
  // Private to the vendor's runtime, which does not run on this driver (gdev/docs/design.md).
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

GDEV_EXPORT(cuGetErrorName, CUresult error, const char** name) {
  thread_local std::string text;
  text = "CUDA error " + std::to_string(error);
  *name = text.c_str();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGetErrorString, CUresult error, const char** text) {
  return cuGetErrorName(error, text);
}

GDEV_EXPORT(cuDeviceGetCount, int* count) {
  *count = the_device().count();
  return is_initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

GDEV_EXPORT(cuDeviceGet, CUdevice* device, int ordinal) {
  *device = ordinal;
  return the_device().has(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

GDEV_EXPORT(cuDeviceGetName, char* name, int bytes, CUdevice /*device*/) {
  constexpr std::string_view text = "gdev's simulated GPU";
  if (bytes <= 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t copied = std::min(text.size(), static_cast<std::size_t>(bytes) - 1);
  std::memcpy(name, text.data(), copied);
  name[copied] = '\0';
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceGetUuid, CUuuid* id, CUdevice device) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const std::uint64_t number = the_device().memory(device).number();
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &number, sizeof number);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceTotalMem, std::size_t* bytes, CUdevice device) {
  if (!the_device().has(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *bytes = the_device().memory(device).total_bytes();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceGetAttribute, int* value, CUdevice_attribute which, CUdevice /*device*/) {
  const char* const host = std::getenv("GDEV_SIMULATED_HOST");
  const bool has_host = host == nullptr || std::string_view(host) != "none";
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
           : which == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
               ? int{has_host}
               : 1;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuCtxSynchronize, ) {
  if (has_ended) {
    return CUDA_ERROR_DEINITIALIZED;
  }
  the_device().wait_for_all();
  return CUDA_SUCCESS;
}

// --- Memory ---

GDEV_EXPORT(cuMemGetInfo, std::size_t* free, std::size_t* total) {
  *free = the_device().memory(current_gpu()).free_bytes();
  *total = the_device().memory(current_gpu()).total_bytes();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemAlloc, CUdeviceptr* address, std::size_t bytes) {
  return the_device().allocate(address, bytes);
}

GDEV_EXPORT(cuMemAllocPitch, CUdeviceptr* address, std::size_t* pitch, std::size_t width,
            std::size_t height, unsigned /*element*/) {
  *pitch = (width + 511) / 512 * 512;
  return the_device().allocate(address, *pitch * height);
}

GDEV_EXPORT(cuMemFree, CUdeviceptr address) { return the_device().free(address); }

GDEV_EXPORT(cuMemGetAddressRange, CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  return the_device().range_of(base, bytes, address);
}

GDEV_EXPORT(cuMemGetAllocationGranularity, std::size_t* bytes,
            const CUmemAllocationProp* /*properties*/, CUmemAllocationGranularity_flags /*which*/) {
  *bytes = gdev::simulated::block_bytes;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemAddressReserve, CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
            CUdeviceptr wanted, unsigned long long /*flags*/) {
  return the_device().reserve(address, bytes, alignment, wanted);
}

GDEV_EXPORT(cuMemAddressFree, CUdeviceptr address, std::size_t bytes) {
  return the_device().free_reservation(address, bytes);
}

GDEV_EXPORT(cuMemCreate, CUmemGenericAllocationHandle* handle, std::size_t bytes,
            const CUmemAllocationProp* properties, unsigned long long /*flags*/) {
  if (has_ended) {
    return CUDA_ERROR_DEINITIALIZED;
  }
  if (const char* const given = std::getenv("GDEV_SIMULATED_CREATE_MS"); given != nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(given)));
  }
  const bool is_known =
      properties != nullptr && (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
                                properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
  return is_known ? the_device().create(handle, bytes, *properties) : CUDA_ERROR_INVALID_VALUE;
}

GDEV_EXPORT(cuMemRelease, CUmemGenericAllocationHandle handle) {
  return the_device().release(handle);
}

GDEV_EXPORT(cuMemMap, CUdeviceptr address, std::size_t bytes, std::size_t offset,
            CUmemGenericAllocationHandle handle, unsigned long long /*flags*/) {
  return offset != 0 ? CUDA_ERROR_NOT_SUPPORTED : the_device().map(address, bytes, handle);
}

GDEV_EXPORT(cuMemUnmap, CUdeviceptr address, std::size_t bytes) {
  return the_device().unmap(address, bytes);
}

GDEV_EXPORT(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle* handle, void* address) {
  return the_device().retain(handle, reinterpret_cast<CUdeviceptr>(address));
}

GDEV_EXPORT(cuMemSetAccess, CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
            std::size_t count) {
  CUresult result = access == nullptr || count == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    result = the_device().set_access(address, bytes, access[i]);
  }
  return result;
}

GDEV_EXPORT(cuMemGetAccess, unsigned long long* flags, const CUmemLocation* user,
            CUdeviceptr address) {
  return the_device().get_access(flags, user->id, address);
}

GDEV_EXPORT(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp* properties,
            CUmemGenericAllocationHandle handle) {
  return the_device().properties_of(properties, handle);
}

/** Does nothing, but only for a handle of this driver. */
GDEV_EXPORT(cuMulticastBindMem, CUmemGenericAllocationHandle /*object*/, std::size_t /*at*/,
            CUmemGenericAllocationHandle handle, std::size_t /*offset*/, std::size_t /*bytes*/,
            unsigned long long /*flags*/) {
  CUmemAllocationProp unused{};
  return the_device().properties_of(&unused, handle);
}

GDEV_EXPORT(cuMemExportToShareableHandle, void* file, CUmemGenericAllocationHandle handle,
            CUmemAllocationHandleType type, unsigned long long /*flags*/) {
  return the_device().export_handle(static_cast<int*>(file), handle, type);
}

GDEV_EXPORT(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle* handle, void* file,
            CUmemAllocationHandleType /*type*/) {
  return the_device().import_handle(handle,
                                    static_cast<int>(reinterpret_cast<std::intptr_t>(file)));
}

// --- Memory of the host, which the simulated GPU reaches everywhere ---

GDEV_EXPORT(cuMemAllocHost, void** address, std::size_t bytes) {
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *address == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemHostAlloc, void** address, std::size_t bytes, unsigned /*flags*/) {
  return cuMemAllocHost(address, bytes);
}

GDEV_EXPORT(cuMemFreeHost, void* address) {
  std::free(address);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemHostGetDevicePointer, CUdeviceptr* address, void* pointer, unsigned /*flags*/) {
  *address = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemHostRegister, void* /*address*/, std::size_t /*bytes*/, unsigned /*flags*/) {
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuMemHostUnregister, void* /*address*/) { return CUDA_SUCCESS; }

/** A function that no header has: newer drivers have functions that gdev does not know. */
GDEV_EXPORT(cuFunctionOfTomorrow, ) { return CUDA_SUCCESS; }

// --- Memory of other kinds: it differs in its calls only ---

GDEV_EXPORT(cuMemAllocManaged, CUdeviceptr* address, std::size_t bytes, unsigned /*flags*/) {
  return the_device().allocate(address, bytes);
}

namespace {

template <typename Array>
CUresult allocate_array(Array* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) {
  CUdeviceptr address = 0;
  const std::size_t bytes = wanted.Width * std::max<std::size_t>(wanted.Height, 1) *
                            std::max<std::size_t>(wanted.Depth, 1) * wanted.NumChannels * 4;
  const CUresult result = the_device().allocate(&address, levels > 1 ? 2 * bytes : bytes);
  *array = reinterpret_cast<Array>(address);
  return result;
}

}  // namespace

GDEV_EXPORT(cuArrayCreate, CUarray* array, const CUDA_ARRAY_DESCRIPTOR* wanted) {
  CUDA_ARRAY3D_DESCRIPTOR flat{};
  flat.Width = wanted->Width;
  flat.Height = wanted->Height;
  flat.NumChannels = wanted->NumChannels;
  return allocate_array(array, flat, 1);
}

GDEV_EXPORT(cuArray3DCreate, CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
  return allocate_array(array, *wanted, 1);
}

GDEV_EXPORT(cuArrayDestroy, CUarray array) {
  return the_device().free(reinterpret_cast<CUdeviceptr>(array));
}

GDEV_EXPORT(cuMipmappedArrayCreate, CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
            unsigned levels) {
  return allocate_array(array, *wanted, levels);
}

GDEV_EXPORT(cuMipmappedArrayDestroy, CUmipmappedArray array) {
  return the_device().free(reinterpret_cast<CUdeviceptr>(array));
}

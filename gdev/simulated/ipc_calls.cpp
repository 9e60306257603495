/** The simulated driver: memory of other processes, and what it says of addresses. */
#include <unistd.h>

#include <bit>
#include <cstdint>

#include "simulated/device.hpp"
#include "simulated/exports.hpp"

namespace gdev::simulated {

namespace {

/** What a handle of this driver holds. As on a GPU, only cuMemAlloc() makes memory for it. */
struct ipc_handle {
  static constexpr std::uint64_t magic_value = 0x6465'7461'6c75'6d69;

  std::uint64_t magic = magic_value;
  std::uint64_t pid = 0;
  std::uint64_t gpu = 0;
  std::uint64_t block = 0;  // the first one of the chunk
  std::uint64_t unused[4]{};
};
static_assert(sizeof(ipc_handle) == sizeof(CUipcMemHandle), "as cuda.h says");

std::uint64_t own_pid() noexcept { return static_cast<std::uint64_t>(getpid()); }

}  // namespace

}  // namespace gdev::simulated

using gdev::simulated::ipc_handle;
using gdev::simulated::own_pid;
using gdev::simulated::the_device;

GDEV_EXPORT(cuIpcGetMemHandle, CUipcMemHandle* handle, CUdeviceptr address) {
  gdev::simulated::place first;
  const CUresult result = the_device().first_block_of(&first, address);
  if (result == CUDA_SUCCESS) {
    ipc_handle made;
    made.pid = own_pid();
    made.gpu = static_cast<std::uint64_t>(first.gpu);
    made.block = first.block;
    *handle = std::bit_cast<CUipcMemHandle>(made);
  }
  return result;
}

GDEV_EXPORT(cuIpcOpenMemHandle, CUdeviceptr* address, CUipcMemHandle handle, unsigned /*flags*/) {
  const auto which = std::bit_cast<ipc_handle>(handle);
  if (which.magic != ipc_handle::magic_value) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return which.pid == own_pid()
             ? CUDA_ERROR_INVALID_CONTEXT
             : the_device().open_chunk(address, {static_cast<CUdevice>(which.gpu),
                                                 static_cast<std::uint32_t>(which.block)});
}

GDEV_EXPORT(cuIpcCloseMemHandle, CUdeviceptr address) { return the_device().close_chunk(address); }

GDEV_EXPORT(cuPointerGetAttribute, void* data, CUpointer_attribute which, CUdeviceptr address) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  gdev::simulated::place first;
  if (the_device().range_of(&base, &bytes, address) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_allocation = the_device().first_block_of(&first, address) == CUDA_SUCCESS;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(data) = base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(data) = bytes; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<std::uint64_t*>(data) =
          is_allocation ? 0 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = is_allocation ? 1 : 0;
      break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *static_cast<CUmemoryPool*>(data) = nullptr; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuPointerGetAttributes, unsigned count, CUpointer_attribute* which, void** data,
            CUdeviceptr address) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    result = cuPointerGetAttribute(data[i], which[i], address);
  }
  return result;
}

GDEV_EXPORT(cuPointerSetAttribute, const void* /*value*/, CUpointer_attribute /*which*/,
            CUdeviceptr address) {
  return the_device().range_of(nullptr, nullptr, address) == CUDA_SUCCESS
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

GDEV_EXPORT(cuMemGetHandleForAddressRange, void* file, CUdeviceptr address, std::size_t /*bytes*/,
            CUmemRangeHandleType /*type*/, unsigned long long /*flags*/) {
  CUmemGenericAllocationHandle chunk = 0;
  CUresult result = the_device().retain(&chunk, address);
  if (result == CUDA_SUCCESS) {
    result = the_device().export_handle(static_cast<int*>(file), chunk,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    the_device().release(chunk);
  }
  return result;
}

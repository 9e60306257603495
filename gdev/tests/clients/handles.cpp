/**
 * A program that makes memory with cuMemCreate, as it is told to, line by line: KIND NUMBER...
 *
 * Each line is answered by one: "ok", with a number where there is one, or "error N", CUDA's.
 * Handles and addresses are numbers as the driver gives them.
 *
 *   init                    cuInit, and the primary context; reset ends that, and makes it anew
 *   create BYTES TYPES      "ok HANDLE"; TYPES: as what it may be exported
 *   release HANDLE          retain ADDRESS: "ok HANDLE"
 *   reserve BYTES           "ok ADDRESS"; unreserve ADDRESS BYTES
 *   map ADDRESS BYTES OFFSET HANDLE, unmap ADDRESS BYTES
 *   access ADDRESS BYTES DEVICE FLAGS, get ADDRESS DEVICE: "ok FLAGS"
 *   fill ADDRESS BYTES VALUE, check ADDRESS BYTES VALUE: "ok 1" if all 4-byte numbers are VALUE
 *   properties HANDLE       "ok DEVICE TYPES"
 *   export HANDLE TYPE      dmabuf ADDRESS BYTES, sync ADDRESS: others are about to use it
 *   bind HANDLE, array HANDLE: cuMulticastBindMem, cuMemMapArrayAsync
 *   range ADDRESS           "ok BYTES": CU_POINTER_ATTRIBUTE_RANGE_SIZE
 */
#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "clients/contexts.hpp"

namespace {

/** Does what a line says. Stores what to print after "ok". */
CUresult obey(const std::string& line, std::ostream& said) {
  std::istringstream words(line);
  std::string kind;
  std::array<std::uint64_t, 4> given{};
  words >> kind;
  for (std::uint64_t& one : given) {
    words >> one;
  }
  const auto [a, b, c, d] = given;
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::uint64_t made = 0;
  if (kind == "init") {
    return init();
  }
  if (kind == "reset") {
    result = cuDevicePrimaryCtxReset(0);
    return result == CUDA_SUCCESS ? use_primary_context() : result;
  }
  if (kind == "create") {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(b);
    CUmemGenericAllocationHandle handle = 0;
    result = cuMemCreate(&handle, a, &wanted, 0);
    made = handle;
  } else if (kind == "release") {
    return cuMemRelease(a);
  } else if (kind == "retain") {
    CUmemGenericAllocationHandle handle = 0;
    result = cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(a));
    made = handle;
  } else if (kind == "reserve") {
    CUdeviceptr address = 0;
    result = cuMemAddressReserve(&address, a, 0, 0, 0);
    made = address;
  } else if (kind == "unreserve") {
    return cuMemAddressFree(a, b);
  } else if (kind == "map") {
    return cuMemMap(a, b, c, d, 0);
  } else if (kind == "unmap") {
    return cuMemUnmap(a, b);
  } else if (kind == "access") {
    CUmemAccessDesc wanted{};
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(c)}};
    wanted.flags = static_cast<CUmemAccess_flags>(d);
    return cuMemSetAccess(a, b, &wanted, 1);
  } else if (kind == "get") {
    const CUmemLocation where{CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(b)}};
    unsigned long long flags = 0;
    result = cuMemGetAccess(&flags, &where, a);
    made = flags;
  } else if (kind == "fill") {
    result = cuMemsetD32(a, static_cast<unsigned>(c), b / sizeof(unsigned));
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;  // before it may be unmapped
  } else if (kind == "check") {
    std::vector<unsigned> copied(b / sizeof(unsigned));
    result = cuMemcpyDtoH(copied.data(), a, b);
    made = std::count(copied.begin(), copied.end(), c) == static_cast<std::ptrdiff_t>(copied.size())
               ? 1
               : 0;
  } else if (kind == "properties") {
    CUmemAllocationProp stored{};
    result = cuMemGetAllocationPropertiesFromHandle(&stored, a);
    said << stored.location.id << ' ';
    made = stored.requestedHandleTypes;
  } else if (kind == "export" || kind == "dmabuf") {
    int file = -1;
    result =
        kind == "export"
            ? cuMemExportToShareableHandle(&file, a, static_cast<CUmemAllocationHandleType>(b), 0)
            : cuMemGetHandleForAddressRange(&file, a, b, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    close(file);
  } else if (kind == "sync") {
    const unsigned yes = 1;
    return cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a);
  } else if (kind == "bind") {
    return cuMulticastBindMem(0, 0, a, 0, 0, 0);
  } else if (kind == "array") {
    CUarrayMapInfo wanted{};
    wanted.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    wanted.memHandle.memHandle = a;
    return cuMemMapArrayAsync(&wanted, 1, nullptr);
  } else if (kind == "range") {
    std::size_t bytes = 0;
    result = cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, a);
    made = bytes;
  }
  said << made;
  return result;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::ostringstream said;
    const CUresult result = obey(line, said);
    if (result == CUDA_SUCCESS) {
      std::cout << "ok " << said.str() << std::endl;
    } else {
      std::cout << "error " << result << std::endl;
    }
  }
}

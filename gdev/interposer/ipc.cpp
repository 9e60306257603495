#include "interposer/ipc.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/crash_point.hpp"
#include "base/endless.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "interposer/handles.hpp"
#include "interposer/ipc_exporter.hpp"
#include "interposer/ipc_fetch.hpp"
#include "interposer/pools.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

/** An allocation of another process that was opened here. */
struct import {
  ipc_handle handle;
  CUcontext context = nullptr;
  CUdevice device = 0;  // that has the memory
  std::size_t size = 0;
  std::vector<imported_chunk> chunks;
  std::uint64_t opened = 0;  // so many times; 0: closed while graphs were captured
};

/** No lock is held across a call of the driver. */
struct import_table {
  std::mutex mutex;
  std::map<CUdeviceptr, import> all;
};

endless<import_table> the_imports;

import_table& imports() noexcept { return the_imports.get(); }

// --- Mappings; the caller holds a submission, and the context is current ---

/** Unmaps the chunks that lie before `end`, and frees the addresses. */
void unmap(CUdeviceptr address, const import& one, CUdeviceptr end) noexcept {
  CUdeviceptr at = address;
  for (const imported_chunk& part : one.chunks) {
    if (at >= end) {
      break;
    }
    static_cast<void>(call_driver<CUresult>(id_cuMemUnmap, at, part.bytes));
    at += part.bytes;
  }
  static_cast<void>(call_driver<CUresult>(id_cuMemAddressFree, address, one.size));
}

/** Returns the access to an import: of the device that opened it, the owner, and its peers. */
std::vector<CUmemAccessDesc> access_for(CUdevice owner, CUdevice user) noexcept {
  std::vector<CUmemAccessDesc> access = swappable().access_of(owner);
  if (std::none_of(access.begin(), access.end(),
                   [&](const CUmemAccessDesc& one) { return one.location.id == user; })) {
    access.push_back(access.front());
    access.back().location.id = user;
  }
  return access;
}

/** Returns the device that has a chunk; `current` if the driver does not say. */
CUdevice owner_of(CUmemGenericAllocationHandle chunk, CUdevice current) noexcept {
  CUmemAllocationProp properties{};
  CUmemAllocationProp* const place = &properties;
  return call_driver<CUresult>(id_cuMemGetAllocationPropertiesFromHandle, place, chunk) ==
                     CUDA_SUCCESS &&
                 properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE
             ? properties.location.id
             : current;
}

/** Maps imported chunks one behind the other. */
CUresult map(import& one, CUdevice user, CUdeviceptr& address) noexcept {
  one.size = 0;
  for (const imported_chunk& part : one.chunks) {
    one.size += part.bytes;
  }
  if (one.size < one.handle.bytes) {
    return CUDA_ERROR_MAP_FAILED;
  }
  CUresult result = call_driver<CUresult>(id_cuMemAddressReserve, &address, one.size,
                                          std::size_t{0}, CUdeviceptr{0}, 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUdeviceptr end = address;
  for (const imported_chunk& part : one.chunks) {
    result = call_driver<CUresult>(id_cuMemMap, end, part.bytes, std::size_t{0}, part.handle, 0ULL);
    if (result != CUDA_SUCCESS) {
      break;
    }
    end += part.bytes;
  }
  if (result == CUDA_SUCCESS) {
    one.device = owner_of(one.chunks.front().handle, user);
    const std::vector<CUmemAccessDesc> access = access_for(one.device, user);
    result =
        call_driver<CUresult>(id_cuMemSetAccess, address, one.size, access.data(), access.size());
  }
  if (result != CUDA_SUCCESS) {
    unmap(address, one, end);
    return CUDA_ERROR_MAP_FAILED;
  }
  return CUDA_SUCCESS;
}

using taken_imports = std::map<CUdeviceptr, import>;

/** Takes out of the table what `is_wanted` tells. */
template <typename Wanted>
taken_imports take_if(Wanted&& is_wanted) {
  taken_imports taken;
  const std::lock_guard lock(imports().mutex);
  for (auto one = imports().all.begin(); one != imports().all.end();) {
    const auto next = std::next(one);
    if (is_wanted(one->second)) {
      taken.insert(imports().all.extract(one));
    }
    one = next;
  }
  return taken;
}

/** Unmaps what was taken out of the table, after the work that may use it. */
void end_all(const taken_imports& taken) noexcept {
  for (const auto& [address, one] : taken) {
    const driver_scope scope(one.context);
    static_cast<void>(call_driver<CUresult>(id_cuCtxSynchronize));
    unmap(address, one, address + one.size);
  }
}

/** Ends what is closed, but not while graphs are captured: waiting would end the captures. */
void end_closed() noexcept {
  if (!has_captures()) {
    end_all(take_if([](const import& one) { return one.opened == 0; }));
  }
}

/** Finds what a context has opened already, and opens it once more. Returns 0 if it has not. */
CUdeviceptr open_again(const ipc_handle& which, CUcontext context) noexcept {
  const std::lock_guard lock(imports().mutex);
  for (auto& [address, one] : imports().all) {
    if (one.handle == which && one.context == context) {
      ++one.opened;
      return address;
    }
  }
  return 0;
}

CUresult open(CUdeviceptr* address, const ipc_handle& which) noexcept {
import made;
  made.handle = which;
  CUdevice device = 0;
  if (address == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (call_driver<CUresult>(id_cuCtxGetCurrent, &made.context) != CUDA_SUCCESS ||
      call_driver<CUresult>(id_cuCtxGetDevice, &device) != CUDA_SUCCESS || is_own_handle(which)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (const CUdeviceptr found = open_again(which, made.context); found != 0) {
    *address = found;
    return CUDA_SUCCESS;
  }
  CUdeviceptr mapped = 0;
  CUresult result = fetch(which, made.chunks);
  if (result != CUDA_SUCCESS) {
    release_all(made.chunks);
    return result;
  }
  const submission in_turn(work::other);
  const driver_scope scope(made.context);
  end_closed();
  result = map(made, device, mapped);
  release_all(made.chunks);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  crash_point("import_mapped");
  made.opened = 1;
  if (const CUdeviceptr found = open_again(which, made.context); found != 0) {
    unmap(mapped, made, mapped + made.size);  // another thread was faster
    *address = found;
    return CUDA_SUCCESS;
  }
  const std::lock_guard lock(imports().mutex);
  imports().all[mapped] = std::move(made);
  *address = mapped;
  return CUDA_SUCCESS;
}

// --- The wrappers ---

CUresult get_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (find_imported(address, nullptr, nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;  // as for the driver's: only who has it may export it
  }
  if (pools().find(address)) {
    return CUDA_ERROR_INVALID_VALUE;  // memory of pools goes by their own handles
  }
  if (handle == nullptr || !swappable().find(address, &base, &bytes)) {
    return call_driver<CUresult>(id_cuIpcGetMemHandle, handle, address);
  }
  const submission in_turn(work::other);
  if (!swappable().wire(base)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ipc_handle made;
  const CUresult result = export_memory(base, bytes, made);
  if (result == CUDA_SUCCESS) {
    *handle = std::bit_cast<CUipcMemHandle>(made);
  }
  return result;
}

template <function_id Id>
CUresult open_handle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) noexcept {
  const auto which = std::bit_cast<ipc_handle>(handle);
  return which.magic == ipc_handle::magic_value ? open(address, which)
                                                : call_driver<CUresult>(Id, address, handle, flags);
}

/** Closes what was opened at an address. Returns how often it is open still, or -1: not here. */
std::int64_t count_down(CUdeviceptr address) noexcept {
  const std::lock_guard lock(imports().mutex);
  const auto found = imports().all.find(address);
  return found == imports().all.end() || found->second.opened == 0
             ? -1
             : static_cast<std::int64_t>(--found->second.opened);
}

CUresult close_handle(CUdeviceptr address) noexcept {
  const std::int64_t left = count_down(address);
  if (left < 0) {
    return call_driver<CUresult>(id_cuIpcCloseMemHandle, address);
  }
  if (left == 0) {
    const submission in_turn(work::other);
    crash_point("import_closing");
    end_closed();
    crash_point("import_closed");
  }
  return CUDA_SUCCESS;
}

/** Corrects what the driver says of chunks, to what it says of memory of cuMemAlloc(). */
void correct(CUpointer_attribute which, void* data, CUdeviceptr address) noexcept {
  if (data == nullptr ||
      (which != CU_POINTER_ATTRIBUTE_RANGE_START_ADDR && which != CU_POINTER_ATTRIBUTE_RANGE_SIZE &&
       which != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
       which != CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
       which != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)) {
    return;
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUmemoryPool pool = nullptr;
  const bool is_own = swappable().find(address, &base, &bytes);
  if (!is_own && !pools().find(address, &base, &bytes, &pool) &&
      !find_imported(address, &base, &bytes)) {
    return;
  }
  const auto store = [data](auto value) { std::memcpy(data, &value, sizeof value); };
  switch (which) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: store(base); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: store(bytes); break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: store(std::uint64_t{0}); break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: store(pool); break;
    default: store(is_own); break;  // the driver has stored a zero of its own size
  }
}

/** Waits for the turn if that brings back what is at an address: the driver sees nothing there. */
class present_memory {
 public:
  explicit present_memory(CUdeviceptr address) noexcept {
    if (swappable().find(address, nullptr, nullptr) || handles().has_mapped(address) ||
        pools().find(address)) {
      in_turn_.emplace(work::other);
    }
  }

 private:
  std::optional<submission> in_turn_;
};

CUresult get_attribute(void* data, CUpointer_attribute which, CUdeviceptr address) noexcept {
  if (which == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE && data != nullptr && pools().find(address)) {
    correct(which, data, address);
    return CUDA_SUCCESS;  // the driver may have no answer for chunks
  }
  const present_memory in_turn(address);
  const CUresult result = call_driver<CUresult>(id_cuPointerGetAttribute, data, which, address);
  if (result == CUDA_SUCCESS) {
    correct(which, data, address);
  }
  return result;
}

CUresult get_attributes(unsigned count, CUpointer_attribute* which, void** data,
                        CUdeviceptr address) noexcept {
  const present_memory in_turn(address);
  const CUresult result =
      call_driver<CUresult>(id_cuPointerGetAttributes, count, which, data, address);
  for (unsigned i = 0; result == CUDA_SUCCESS && i < count; ++i) {
    correct(which[i], data[i], address);
  }
  return result;
}

CUresult set_attribute(const void* value, CUpointer_attribute which, CUdeviceptr address) noexcept {
  const submission in_turn(work::other);
  if (which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    // The program is about to let another device read and write the memory by itself.
    wire_memory(address, 1);
  }
  if (which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !swappable().find(address, nullptr, nullptr)) {
    return call_driver<CUresult>(id_cuPointerSetAttribute, value, which, address);
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& [part, bytes] : swappable().chunks_of(address)) {
    if (result == CUDA_SUCCESS) {
      result = call_driver<CUresult>(id_cuPointerSetAttribute, value, which, part);
    }
  }
  return result;
}

CUresult get_range_handle(void* handle, CUdeviceptr address, std::size_t bytes,
                          CUmemRangeHandleType type, unsigned long long flags) noexcept {
  const submission in_turn(work::other);
  wire_memory(address, bytes);
  return call_driver<CUresult>(id_cuMemGetHandleForAddressRange, handle, address, bytes, type,
                               flags);
}

}  // namespace

void* ipc_wrapper(function_id id) noexcept {
  switch (id) {
    case id_cuIpcGetMemHandle: return address_of(&get_handle);
    case id_cuIpcOpenMemHandle: return address_of(&open_handle<id_cuIpcOpenMemHandle>);
    case id_cuIpcOpenMemHandle_v2: return address_of(&open_handle<id_cuIpcOpenMemHandle_v2>);
    case id_cuIpcCloseMemHandle: return address_of(&close_handle);
    case id_cuPointerGetAttribute: return address_of(&get_attribute);
    case id_cuPointerGetAttributes: return address_of(&get_attributes);
    case id_cuPointerSetAttribute: return address_of(&set_attribute);
    case id_cuMemGetHandleForAddressRange: return address_of(&get_range_handle);
    default: return nullptr;
  }
}

bool find_imported(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) noexcept {
  const std::lock_guard lock(imports().mutex);
  const auto after = imports().all.upper_bound(address);
  if (after == imports().all.begin()) {
    return false;
  }
  const auto& [begin, one] = *std::prev(after);
  if (one.opened == 0 || address - begin >= one.handle.bytes) {
    return false;
  }
  if (base != nullptr) {
    *base = begin;
  }
  if (bytes != nullptr) {
    *bytes = one.handle.bytes;
  }
  return true;
}

std::uint64_t imported_bytes() noexcept {
  const std::lock_guard lock(imports().mutex);
  std::uint64_t all = 0;
  for (const auto& [address, one] : imports().all) {
    all += one.size;
  }
  return all;
}

void close_imports(CUcontext context) noexcept {
  end_all(take_if([context](const import& one) { return one.context == context; }));
}

void give_access_to_imports(CUdevice owner, CUdevice user) noexcept {
  std::vector<std::pair<CUdeviceptr, std::size_t>> changed;
  {
    const std::lock_guard lock(imports().mutex);
    for (const auto& [address, one] : imports().all) {
      if (one.device == owner) {
        changed.emplace_back(address, one.size);
      }
    }
  }
  const std::vector<CUmemAccessDesc> access = access_for(owner, user);
  for (const auto& [address, size] : changed) {
    static_cast<void>(
        call_driver<CUresult>(id_cuMemSetAccess, address, size, access.data(), access.size()));
  }
}

void forget_ipc() noexcept {
  the_imports.forget();
  forget_exports();
}

}  // namespace gdev

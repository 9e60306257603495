#include "calls/memory.hpp"

#include <cerrno>
#include <iterator>
#include <utility>

#include "calls/driver.hpp"

namespace gdev::calls {

namespace {

/** Returns the range that contains an address, or the map's end. */
template <typename Ranges, typename BytesOf>
auto find_range(Ranges& ranges, typename Ranges::key_type address, BytesOf&& bytes_of) noexcept {
  const auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) {
    return ranges.end();
  }
  const auto found = std::prev(after);
  return address - found->first < bytes_of(found->second) ? found : ranges.end();
}

}  // namespace

int memory::allocate(CUdeviceptr& address, std::size_t bytes) noexcept {
  if (bytes == 0) {
    return -EINVAL;
  }
  CUdeviceptr made = 0;
  if (const CUresult result = driver().cuMemAlloc(&made, bytes); result != CUDA_SUCCESS) {
    return error_of(result);
  }
  const std::lock_guard lock(mutex_);
  ranges_[made] = {bytes, 0};
  address = made;
  return 0;
}

int memory::free(CUdeviceptr address) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.attached != 0) {
      return -EINVAL;
    }
    ranges_.erase(found);
  }
  return error_of(driver().cuMemFree(address));
}

int memory::allocate_pinned(void*& buffer, std::size_t bytes) noexcept {
  if (bytes == 0) {
    return -EINVAL;
  }
  void* made = nullptr;
  const CUresult result =
      driver().cuMemHostAlloc(&made, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result != CUDA_SUCCESS) {
    return error_of(result);
  }
  const std::lock_guard lock(mutex_);
  pinned_[reinterpret_cast<std::uintptr_t>(made)] = bytes;
  buffer = made;
  return 0;
}

int memory::free_pinned(void* buffer) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(reinterpret_cast<std::uintptr_t>(buffer)) == 0) {
      return -EINVAL;
    }
  }
  return error_of(driver().cuMemFreeHost(buffer));
}

int memory::find_device_address(const void* pointer, CUdeviceptr& address) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (find_range(pinned_, reinterpret_cast<std::uintptr_t>(pointer),
                   [](std::size_t bytes) { return bytes; }) == pinned_.end()) {
      return -EINVAL;
    }
  }
  return error_of(driver().cuMemHostGetDevicePointer(&address, const_cast<void*>(pointer), 0));
}

int memory::name(CUdeviceptr address, gname& made) noexcept {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.attached != 0) {
      return -EINVAL;
    }
    bytes = found->second.bytes;
  }
  made.bytes = bytes;
  return error_of(driver().cuIpcGetMemHandle(&made.memory, address));
}

int memory::attach(const gname& name, CUdeviceptr& address) noexcept {
  CUdeviceptr made = 0;
  const CUresult result =
      driver().cuIpcOpenMemHandle(&made, name.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    return -EINVAL;  // the driver's error for a handle of this process
  }
  if (result != CUDA_SUCCESS) {
    return error_of(result);
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  // The name comes from another process, which may claim anything.
  if (driver().cuMemGetAddressRange(&base, &bytes, made) != CUDA_SUCCESS || name.bytes == 0 ||
      made - base > bytes || name.bytes > bytes - (made - base)) {
    static_cast<void>(driver().cuIpcCloseMemHandle(made));
    return -EINVAL;
  }
  const std::lock_guard lock(mutex_);
  range& kept = ranges_[made];
  kept.bytes = bytes - (made - base);
  ++kept.attached;
  address = made;
  return 0;
}

int memory::detach(CUdeviceptr address) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.attached == 0) {
      return -EINVAL;
    }
    if (--found->second.attached == 0) {
      ranges_.erase(found);
    }
  }
  return error_of(driver().cuIpcCloseMemHandle(address));
}

void memory::free_all() noexcept {
  mutex_.lock();
  const auto ranges = std::exchange(ranges_, {});
  const auto pinned = std::exchange(pinned_, {});
  mutex_.unlock();
  for (const auto& [address, one] : ranges) {
    if (one.attached == 0) {
      static_cast<void>(driver().cuMemFree(address));
    }
    for (std::uint64_t i = 0; i < one.attached; ++i) {
      static_cast<void>(driver().cuIpcCloseMemHandle(address));
    }
  }
  for (const auto& [buffer, bytes] : pinned) {
    static_cast<void>(driver().cuMemFreeHost(reinterpret_cast<void*>(buffer)));
  }
}

bool memory::may_use(CUdeviceptr address, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = find_range(ranges_, address, [](const range& one) { return one.bytes; });
  return address != 0 &&
         (found == ranges_.end() || bytes <= found->second.bytes - (address - found->first));
}

}  // namespace gdev::calls

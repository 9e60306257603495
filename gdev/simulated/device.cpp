#include "simulated/device.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gdev::simulated {

namespace {

/** How much of the host's memory there is for chunks. */
std::size_t host_bytes() noexcept {
  const char* const given = std::getenv("GDEV_SIMULATED_HOST");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::size_t{1} << 30;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept {
  return (bytes + unit - 1) / unit * unit;
}

std::byte* pointer(CUdeviceptr address) noexcept { return reinterpret_cast<std::byte*>(address); }

/** Takes the access away, and keeps the addresses. */
CUresult make_inaccessible(CUdeviceptr address, std::size_t bytes) noexcept {
  return mmap(pointer(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED
             ? CUDA_ERROR_OUT_OF_MEMORY
             : CUDA_SUCCESS;
}

/** Returns the properties of what can be shared by a descriptor. */
CUmemAllocationProp exportable(CUdevice gpu) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu;
  return properties;
}

/** Returns the access that a GPU gets to its own memory. */
CUmemAccessDesc all_access(CUdevice gpu) noexcept {
  return {exportable(gpu).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

}  // namespace

device::device() : memories_(open_gpus()) {}

CUresult device::take(CUdevice gpu, std::size_t blocks, chunk& taken) {
  if (blocks == 0) {
    return CUDA_SUCCESS;
  }
  taken = memories_.at(index(gpu))->allocate(blocks);
  return taken.blocks.empty() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult device::take(CUdevice gpu, const char* variable, chunk& taken) {
  const char* const given = std::getenv(variable);
  return take(gpu, given == nullptr ? 0 : std::strtoull(given, nullptr, 10) / block_bytes, taken);
}

CUresult device::reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                         CUdeviceptr wanted) {
  alignment = alignment == 0 ? block_bytes : alignment;
  if (address == nullptr || bytes == 0 || bytes % block_bytes != 0 ||
      (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  alignment = std::max(alignment, block_bytes);
  const std::size_t mapped = bytes + alignment;
  void* const place =
      mmap(pointer(wanted), mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const auto begin = reinterpret_cast<CUdeviceptr>(place);
  const CUdeviceptr aligned = round_up(begin, alignment);
  if (aligned > begin) {
    munmap(place, aligned - begin);
  }
  munmap(pointer(aligned + bytes), begin + mapped - aligned - bytes);
  const std::lock_guard lock(mutex_);
  ranges_[aligned] = {bytes, false};
  *address = aligned;
  return CUDA_SUCCESS;
}

CUresult device::free_reservation(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  const auto mapped = first_in(address);
  if (found == ranges_.end() || found->second.bytes != bytes || found->second.is_allocation ||
      (mapped != mapped_.end() && mapped->first < address + bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  free_range(found);
  return CUDA_SUCCESS;
}

void device::free_range(std::map<CUdeviceptr, range>::iterator which) {
  munmap(pointer(which->first), which->second.bytes);
  mapped_.erase(which->first);  // of an allocation
  ranges_.erase(which);
}

CUmemGenericAllocationHandle device::add_handle(chunk memory, const gpu_memory& of,
                                                const CUmemAllocationProp& properties) {
  const auto made =
      std::make_shared<allocation_handle>(allocation_handle{std::move(memory), &of, properties});
  const auto handle = reinterpret_cast<CUmemGenericAllocationHandle>(made.get());
  const std::lock_guard lock(mutex_);
  handles_[handle] = made;
  return handle;
}

std::shared_ptr<allocation_handle> device::find_handle(CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second;
}

gpu_memory& device::host_memory() {
  const std::lock_guard lock(mutex_);
  if (!host_.has_value()) {
    host_.emplace((gpu_files().front() + ".host").c_str(), host_bytes());
  }
  return *host_;
}

CUresult device::create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                        const CUmemAllocationProp& properties) {
  if (handle == nullptr || bytes == 0 || bytes % block_bytes != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_on_host = properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (!is_on_host && !has(properties.location.id)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  gpu_memory& of = is_on_host ? host_memory() : *memories_[index(properties.location.id)];
  chunk made = of.allocate(bytes / block_bytes);
  if (made.blocks.empty()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = add_handle(std::move(made), of, properties);
  return CUDA_SUCCESS;
}

CUresult device::release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<allocation_handle> which = find_handle(handle);
  if (which == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--which->references == 0) {
    handles_.erase(handle);
  }
  return CUDA_SUCCESS;
}

device::mappings::iterator device::first_in(CUdeviceptr address) {
  const auto after = mapped_.upper_bound(address);
  if (after == mapped_.begin()) {
    return after;
  }
  const auto before = std::prev(after);
  return address - before->first < before->second.bytes() ? before : after;
}

bool device::has_whole_mappings(CUdeviceptr address, std::size_t bytes) {
  const CUdeviceptr end = address + bytes;
  for (auto one = first_in(address); one != mapped_.end() && one->first < end; ++one) {
    if (one->first < address || one->first + one->second.bytes() > end) {
      return false;
    }
  }
  return true;
}

bool device::is_in_allocation(CUdeviceptr address) {
  const auto found = ranges_.upper_bound(address);
  return found != ranges_.begin() && std::prev(found)->second.is_allocation &&
         address - std::prev(found)->first < std::prev(found)->second.bytes;
}

CUresult device::map(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<allocation_handle> which = find_handle(handle);
  if (which == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes != which->memory.blocks.size() * block_bytes) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto found = ranges_.upper_bound(address);
  const auto mapped = first_in(address);
  if (found == ranges_.begin() || (--found)->second.is_allocation ||
      address + bytes > found->first + found->second.bytes ||
      (mapped != mapped_.end() && mapped->first < address + bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The mappings hold the chunk from now on.
  which->of->map(which->memory, pointer(address));
  mapped_[address] = {which, {}};
  return CUDA_SUCCESS;
}

CUresult device::retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = first_in(address);
  if (found == mapped_.end() || found->first > address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<allocation_handle>& which = found->second.of;
  ++which->references;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(which.get());
  handles_[*handle] = which;
  return CUDA_SUCCESS;
}

CUresult device::unmap(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!has_whole_mappings(address, bytes) || is_in_allocation(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  mapped_.erase(mapped_.lower_bound(address), mapped_.lower_bound(address + bytes));
  return make_inaccessible(address, bytes);
}

CUresult device::set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc& access) {
  // Where there is one GPU, a second one may have access, which is not there otherwise.
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE || access.location.id < 0 ||
      access.location.id >= std::max(count(), 2)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const std::lock_guard lock(mutex_);
  auto one = mapped_.find(address);
  if (one == mapped_.end() || !has_whole_mappings(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int protection = access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PROT_NONE
                         : access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
                                                                         : PROT_READ | PROT_WRITE;
  const CUdeviceptr end = address + bytes;
  for (; one != mapped_.end() && one->first == address && address < end; ++one) {
    // What peers may do is known, but not enforced: the processor stands for all GPUs.
    const CUmemLocation& home = one->second.of->properties.location;
    const bool is_own = home.type != CU_MEM_LOCATION_TYPE_DEVICE || home.id == access.location.id;
    if (is_own && has(access.location.id) &&
        mprotect(pointer(address), one->second.bytes(), protection) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    one->second.access[access.location.id] = access.flags;
    address += one->second.bytes();
  }
  return CUDA_SUCCESS;
}

CUresult device::get_access(unsigned long long* flags, CUdevice user, CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = first_in(address);
  if (flags == nullptr || found == mapped_.end() || found->first > address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto given = found->second.access.find(user);
  *flags = given == found->second.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : given->second;
  return CUDA_SUCCESS;
}

CUresult device::properties_of(CUmemAllocationProp* properties,
                               CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<allocation_handle> which = find_handle(handle);
  if (which == nullptr || properties == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *properties = which->properties;
  return CUDA_SUCCESS;
}

CUresult device::export_handle(int* file, CUmemGenericAllocationHandle handle,
                               CUmemAllocationHandleType type) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<allocation_handle> which = find_handle(handle);
  if (file == nullptr || which == nullptr || type == CU_MEM_HANDLE_TYPE_NONE ||
      (which->properties.requestedHandleTypes & type) != type) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *file = fcntl(which->memory.file.number(), F_DUPFD_CLOEXEC, 0);
  return *file < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult device::import_handle(CUmemGenericAllocationHandle* handle, int file) {
  for (CUdevice gpu = 0; gpu < count(); ++gpu) {
    const gpu_memory& of = memory(gpu);
    chunk found = of.import(file_descriptor(fcntl(file, F_DUPFD_CLOEXEC, 0)));
    if (!found.blocks.empty()) {
      *handle = add_handle(std::move(found), of, exportable(gpu));
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult device::allocate(CUdeviceptr* address, std::size_t bytes, CUdevice gpu) {
  if (address == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t size = round_up(bytes, block_bytes);
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = create(&handle, size, exportable(gpu));
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = reserve(address, size, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = map(*address, size, handle);
  }
  if (result == CUDA_SUCCESS) {
    result = set_access(*address, size, all_access(gpu));
  }
  release(handle);
  if (result == CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    ranges_[*address].is_allocation = true;
  }
  return result;
}

CUresult device::free(CUdeviceptr address) {
  if (address == 0) {
    return CUDA_SUCCESS;
  }
  wait_for_all();  // CUDA frees nothing that earlier work uses
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || !found->second.is_allocation) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  free_range(found);
  return CUDA_SUCCESS;
}

void device::free_all(CUdevice gpu) {
  wait_for_all();
  const std::lock_guard lock(mutex_);
  for (auto one = ranges_.begin(); one != ranges_.end();) {
    const auto next = std::next(one);
    if (one->second.is_allocation && mapped_.at(one->first).of->properties.location.id == gpu) {
      free_range(one);
    }
    one = next;
  }
}

CUresult device::range_of(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  auto found = ranges_.upper_bound(address);
  if (found == ranges_.begin() || address - (--found)->first >= found->second.bytes) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) {
    *base = found->first;
  }
  if (bytes != nullptr) {
    *bytes = found->second.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult device::first_block_of(place* block, CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  auto found = ranges_.upper_bound(address);
  if (found == ranges_.begin() || address - (--found)->first >= found->second.bytes ||
      !found->second.is_allocation) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const allocation_handle& of = *mapped_.at(found->first).of;
  *block = {of.properties.location.id, of.memory.blocks.front()};
  return CUDA_SUCCESS;
}

CUresult device::open_chunk(CUdeviceptr* address, place block) {
  if (!has(block.gpu)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const gpu_memory& of = memory(block.gpu);
  chunk found = of.begins_with(block.block);
  if (found.blocks.empty()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t bytes = found.blocks.size() * block_bytes;
  const CUmemGenericAllocationHandle handle =
      add_handle(std::move(found), of, exportable(block.gpu));
  CUresult result = reserve(address, bytes, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = map(*address, bytes, handle);
  }
  release(handle);
  return result == CUDA_SUCCESS ? set_access(*address, bytes, all_access(block.gpu)) : result;
}

CUresult device::close_chunk(CUdeviceptr address) {
  wait_for_all();
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (range_of(&base, &bytes, address) != CUDA_SUCCESS || base != address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = unmap(address, bytes);
  return result == CUDA_SUCCESS ? free_reservation(address, bytes) : result;
}

void device::before_fork() {
  mutex_.lock();
  device_streams::before_fork();
}

void device::after_fork_in_parent() {
  device_streams::after_fork_in_parent();
  mutex_.unlock();
}

void device::after_fork_in_child() {
  device_streams::after_fork_in_child();
  mutex_.unlock();
}

device& the_device() {
  // Never ended: threads may use it until the process is gone, and the kernel frees what it holds.
  static device* const only = []() noexcept {
    try {
      auto* const made = new device();
      pthread_atfork([] { the_device().before_fork(); },
                     [] { the_device().after_fork_in_parent(); },
                     [] { the_device().after_fork_in_child(); });
      return made;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "simulated GPU: %s\n", error.what());
      std::_Exit(1);  // a test has asked for a GPU that cannot be
    }
  }();
  return *only;
}

}  // namespace gdev::simulated

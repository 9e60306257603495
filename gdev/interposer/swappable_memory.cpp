#include "interposer/swappable_memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/crash_point.hpp"
#include "base/endless.hpp"
#include "base/environment.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "protocol/account.hpp"

namespace gdev {

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;
endless<swappable_memory> only;
std::atomic<bool> is_stopped = false;

CUmemLocation on(CUdevice device) noexcept {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

int attribute(CUdevice_attribute which, CUdevice device) noexcept {
  int value = 0;
  static_cast<void>(call_driver<CUresult>(id_cuDeviceGetAttribute, &value, which, device));
  return value;
}

bool is_switched_off() noexcept { return std::string_view(variable("GDEV_SWAP")) == "0"; }

}  // namespace

bool can_be_on_host() noexcept {
  CUdevice device = 0;
  return call_driver<CUresult>(id_cuCtxGetDevice, &device) == CUDA_SUCCESS &&
         attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0;
}

swappable_memory& swappable() noexcept { return only.get(); }

void forget_swappable() noexcept {
  only.get().close_file();
  only.forget();
}

std::uint64_t swappable_memory::physical(std::uint64_t bytes) noexcept {
  return bytes > ~std::uint64_t{0} - granularity
             ? bytes
             : (bytes + granularity - 1) / granularity * granularity;
}

void swappable_memory::stop() noexcept { is_stopped.store(true, std::memory_order_relaxed); }

swappable_memory::prospects swappable_memory::look_ahead(CUdevice& device) {
  if (!has_joined() || is_stopped.load(std::memory_order_relaxed) ||
      call_driver<CUresult>(id_cuCtxGetDevice, &device) != CUDA_SUCCESS) {
    return prospects::never;
  }
  {
    const std::lock_guard lock(mutex_);
    if (home_ >= 0 && device != home_) {
      return prospects::never;
    }
    if (has_begun_) {
      return prospects::begun;
    }
  }
  return !is_switched_off() &&
                 attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0
             ? prospects::possible
             : prospects::never;
}

bool swappable_memory::could_begin() {
  CUdevice device = 0;
  return look_ahead(device) != prospects::never;
}

bool swappable_memory::begin() {
  CUdevice device = 0;
  if (const prospects now = look_ahead(device); now != prospects::possible) {
    return now == prospects::begun;
  }
  const gpu_facts seen = look_at_gpu();
  if (seen.number == 0 || !use_gpu(seen)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_begun_, true) && files_.open()) {
    publish_files();
  }
  home_ = device;
  return true;
}

memory_place swappable_memory::place_on(CUdevice device) {
  CUdevice current = device;
  const bool has_context = call_driver<CUresult>(id_cuCtxGetDevice, &current) == CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  if (home_ < 0 && has_context && device == current) {
    home_ = device;
  }
  return device == (home_ < 0 ? current : home_) ? memory_place::here : memory_place::elsewhere;
}

memory_place swappable_memory::place() {
  CUdevice device = 0;
  return call_driver<CUresult>(id_cuCtxGetDevice, &device) == CUDA_SUCCESS ? place_on(device)
                                                                           : memory_place::here;
}

void swappable_memory::note_context(CUcontext made) {
  const std::lock_guard lock(mutex_);
  contexts_.insert(made);
}

void swappable_memory::count(const chunk& made) {
  const std::lock_guard lock(mutex_);
  if (made.on_host == nullptr) {
    size_ += made.bytes;
    resident_ += made.bytes;
  }
  contexts_.insert(made.context);
  publish_memory(size_, resident_);
}

std::uint64_t swappable_memory::size() {
  const std::lock_guard lock(mutex_);
  return size_;
}

void swappable_memory::release_counted(chunk& gone) {
  const bool was_there = gone.handle != 0;
  release(gone);
  for (host_place& one : gone.places) {
    give_place(one);
  }
  const std::lock_guard lock(mutex_);
  if (!gone.is_wired && gone.on_host == nullptr) {
    size_ -= gone.bytes;
    resident_ -= was_there ? gone.bytes : 0;
    publish_memory(size_, resident_);
  }
}

std::vector<CUmemAccessDesc> swappable_memory::access_of(CUdevice device) {
  std::vector<CUmemAccessDesc> access{{on(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  const std::lock_guard lock(mutex_);
  for (const CUdevice user : peers_[device]) {
    access.push_back({on(user), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return access;
}

// --- Allocations ---

CUmemAllocationProp swappable_memory::properties_on(CUdevice device) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = on(device);
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) != 0) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // for ipc.hpp
  }
  properties.allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(
      attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) != 0);
  return properties;
}

void swappable_memory::give_place(host_place& one) {
  if (one.copy != nullptr) {
    pool_.give(std::exchange(one.copy, nullptr), one.bytes);
  }
  if (one.file != swap_file::none) {
    files_.give(std::exchange(one.file, swap_file::none), one.bytes);
  }
}

void swappable_memory::unmake(CUdeviceptr address, range& gone) {
  for (chunk& one : gone.chunks) {
    release_counted(one);
  }
  crash_point("range_unmade");
  call_driver<CUresult>(id_cuMemAddressFree, address, gone.size);
}

CUresult swappable_memory::allocate(CUdeviceptr* address, std::size_t bytes,
                                    std::shared_ptr<holding> held) {
  range made;
  made.bytes = bytes;
  made.size = physical(bytes);
  made.held = std::move(held);
  if (address == nullptr || made.size < bytes || made.size % granularity != 0) {
    return address == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUcontext context = nullptr;
  CUdevice device = 0;
  if (call_driver<CUresult>(id_cuCtxGetCurrent, &context) != CUDA_SUCCESS ||
      call_driver<CUresult>(id_cuCtxGetDevice, &device) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const driver_scope scope(context);
  free_deferred();
  CUdeviceptr base = 0;
  CUresult result = call_driver<CUresult>(id_cuMemAddressReserve, &base, made.size, std::size_t{0},
                                          CUdeviceptr{0}, 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  crash_point("range_reserved");
  const CUmemAllocationProp properties = properties_on(device);
  const std::vector<CUmemAccessDesc> access = access_of(device);
  for (std::size_t at = 0; at < made.size;) {
    chunk one(properties, std::min<std::size_t>(chunk_bytes_max, made.size - at), context,
              made.held);
    one.mappings.push_back({base + at, access});
    result = make(one);
    if (result != CUDA_SUCCESS) {
      unmake(base, made);
      return result;
    }
    count(one);
    crash_point("chunk_counted");
    at += one.bytes;
    made.chunks.push_back(std::move(one));
  }
  const std::lock_guard lock(mutex_);
  ranges_[base] = std::move(made);
  *address = base;
  crash_point("range_published");
  return CUDA_SUCCESS;
}

CUresult swappable_memory::add(chunk& made) {
  const CUresult result = make(made);
  if (result == CUDA_SUCCESS) {
    count(made);
    const std::lock_guard lock(mutex_);
    others_.insert(&made);
  }
  return result;
}

void swappable_memory::remove(chunk& gone) {
  {
    const std::lock_guard lock(mutex_);
    others_.erase(&gone);
  }
  release_counted(gone);
}

bool swappable_memory::begins_at(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  return ranges_.contains(address);
}

bool swappable_memory::find(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) {
  const std::lock_guard lock(mutex_);
  CUdeviceptr begin = 0;
  const range* const found = range_at(address, &begin);
  if (found == nullptr) {
    return false;
  }
  if (base != nullptr) {
    *base = begin;
  }
  if (bytes != nullptr) {
    *bytes = found->bytes;
  }
  return true;
}

bool swappable_memory::reaches_into(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const std::map<CUdeviceptr, range>* const of : {&ranges_, &deferred_}) {
    const auto next = of->upper_bound(address);
    if ((next != of->end() && next->first - address < bytes) ||
        (next != of->begin() && address - std::prev(next)->first < std::prev(next)->second.size)) {
      return true;
    }
  }
  return false;
}

void swappable_memory::free_deferred() {
  std::map<CUdeviceptr, range> freed;
  if (has_captures()) {
    return;  // waiting for a context would end them
  }
  {
    const std::lock_guard lock(mutex_);
    freed = std::exchange(deferred_, {});
  }
  for (auto& [address, one] : freed) {
    const driver_scope scope(one.chunks.front().context);
    call_driver<CUresult>(id_cuCtxSynchronize);
    unmake(address, one);
    crash_point("range_freed");
  }
}

CUresult swappable_memory::free(CUdeviceptr address) {
  {
    const std::lock_guard lock(mutex_);
    auto freed = ranges_.extract(address);
    if (freed.empty()) {
      return CUDA_ERROR_INVALID_VALUE;  // another thread has freed it meanwhile
    }
    deferred_.insert(std::move(freed));
  }
  free_deferred();
  return CUDA_SUCCESS;
}

void swappable_memory::free_all(CUcontext context) {
  std::map<CUdeviceptr, range> freed;
  {
    const std::lock_guard lock(mutex_);
    for (std::map<CUdeviceptr, range>* const from : {&ranges_, &deferred_}) {
      for (auto one = from->begin(); one != from->end();) {
        const auto next = std::next(one);
        if (one->second.chunks.front().context == context) {
          freed.insert(from->extract(one));
        }
        one = next;
      }
    }
    contexts_.erase(context);
    streams_.erase(context);
    broken_.erase(context);
  }
  pool_.forget_context();
  find_new_context(context);
  if (freed.empty()) {
    return;
  }
  const driver_scope scope(context);
  call_driver<CUresult>(id_cuCtxSynchronize);
  for (auto& [address, one] : freed) {
    unmake(address, one);
  }
}

CUcontext swappable_memory::context_of(const chunk& one) {
  const std::lock_guard lock(mutex_);
  return one.context;
}

void swappable_memory::find_new_context(CUcontext ended) {
  // Another thread may release chunks meanwhile: they are looked up anew after calls of the driver.
  const auto is_left = [ended](const chunk* one) { return one->context == ended; };
  CUdevice owner = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto one = std::find_if(others_.begin(), others_.end(), is_left);
    if (one == others_.end()) {
      return;
    }
    owner = (*one)->device();
  }
  CUcontext found = nullptr;
  for (const CUcontext other : all_contexts()) {
    const driver_scope scope(other);
    CUdevice device = 0;
    if (scope.is_there() && call_driver<CUresult>(id_cuCtxGetDevice, &device) == CUDA_SUCCESS &&
        device == owner) {
      found = other;
      break;
    }
  }
  std::vector<host_place> places;
  {
    const std::lock_guard lock(mutex_);
    for (chunk* const one : others_) {
      if (is_left(one) && found != nullptr) {
        one->context = found;
      } else if (is_left(one)) {
        stay(*one, places);
      }
    }
  }
  give_places(std::move(places));
}

CUresult swappable_memory::give_access(CUdevice owner, CUdevice user) {
  std::vector<std::pair<CUdeviceptr, std::size_t>> changed;
  {
    const std::lock_guard lock(mutex_);
    if (!peers_[owner].insert(user).second) {
      return CUDA_SUCCESS;
    }
  }
  const std::vector<CUmemAccessDesc> access = access_of(owner);
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, one] : ranges_) {
      if (one.chunks.front().device() != owner) {
        continue;
      }
      changed.emplace_back(address, one.size);
      for (chunk& part : one.chunks) {
        part.mappings.front().access = access;
      }
    }
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& [address, size] : changed) {
    result = call_driver<CUresult>(id_cuMemSetAccess, address, size, access.data(), access.size());
  }
  return result;
}

}  // namespace gdev

#include "interposer/pools.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/crash_point.hpp"
#include "base/endless.hpp"
#include "interposer/client.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/with_account.hpp"
#include "protocol/account.hpp"

namespace gdev {

namespace {

/** Smaller allocations have ranges of their own, so that they do not keep large ones. */
constexpr std::size_t large = std::size_t{1} << 20;
/** Programs may make streams without end. */
constexpr std::size_t places_max = 4096;

endless<stream_pools> only;

/** Returns the properties of the pools that gdev serves. */
CUmemPoolProps plain_pool(CUdevice device) noexcept {
  CUmemPoolProps properties;
  std::memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

}  // namespace

stream_pools& pools() noexcept { return only.get(); }

void forget_pools() noexcept { only.forget(); }

// --- Tables ---

stream_pools::ranges::iterator stream_pools::range_at(CUdeviceptr address) {
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) {
    return ranges_.end();
  }
  const auto found = std::prev(after);
  return address - found->first < found->second->bytes ? found : ranges_.end();
}

std::shared_ptr<stream_pools::pool> stream_pools::pool_of(CUmemoryPool handle) const {
  const auto found = pools_.find(handle);
  return found == pools_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<stream_pools::pool>> stream_pools::all_pools() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<pool>> all = destroyed_;
  for (const auto& [handle, one] : pools_) {
    all.push_back(one);
  }
  return all;
}

void stream_pools::note_used(pool& of, std::size_t bytes) {
  of.amounts.used += bytes;
  of.amounts.used_high = std::max(of.amounts.used_high, of.amounts.used);
  cached_.fetch_sub(bytes, std::memory_order_relaxed);
}

void stream_pools::note_unused(pool& of, std::size_t bytes) {
  of.amounts.used -= bytes;
  cached_.fetch_add(bytes, std::memory_order_relaxed);
  if (of.amounts.reserved > of.threshold) {
    may_release_.store(true, std::memory_order_relaxed);
  }
}

bool stream_pools::find(CUdeviceptr address, CUdeviceptr* begin, std::size_t* bytes,
                        CUmemoryPool* of) {
  if (ranges_count_.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto found = range_at(address);
  if (found == ranges_.end()) {
    return false;
  }
  const range& in = *found->second;
  if (of != nullptr) {
    *of = in.of->handle;
  }
  return in.of->blocks[in.kind].find(address, begin, bytes);
}

bool stream_pools::reaches_into(CUdeviceptr address, std::size_t bytes) {
  if (ranges_count_.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto next = ranges_.upper_bound(address);
  return range_at(address) != ranges_.end() ||
         (next != ranges_.end() && next->first - address < bytes);
}

bool stream_pools::find_place(CUstream stream, place& found) {
  unsigned long long number = 0;  // no other stream gets it, also after this one's end
  if (call_driver<CUresult>(id_cuStreamGetId, stream, &number) != CUDA_SUCCESS) {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = places_.find(number); known != places_.end()) {
      found = known->second;
      return true;
    }
  }
  found.stream = number;
  const bool is_default =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if ((is_default
           ? call_driver<CUresult>(id_cuCtxGetCurrent, &found.context)
           : call_driver<CUresult>(id_cuStreamGetCtx, stream, &found.context)) != CUDA_SUCCESS ||
      found.context == nullptr) {
    return false;
  }
  const driver_scope scope(found.context);
  if (call_driver<CUresult>(id_cuCtxGetDevice, &found.device) != CUDA_SUCCESS) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (places_.size() >= places_max) {
    places_.clear();
  }
  places_[number] = found;
  return true;
}

std::shared_ptr<stream_pools::pool> stream_pools::find_pool(CUmemoryPool handle,
                                                            const place& where) {
  if (handle == nullptr &&
      call_driver<CUresult>(id_cuDeviceGetMemPool, &handle, where.device) != CUDA_SUCCESS) {
    return nullptr;
  }
  for (const bool is_first : {true, false}) {
    {
      const std::lock_guard lock(mutex_);
      if (const std::shared_ptr<pool> found = pool_of(handle); found != nullptr) {
        return found->device == where.device && !found->is_shared ? found : nullptr;
      }
    }
    if (is_first) {
      add_default(handle, where.device);
    }
  }
  return nullptr;
}

// --- Events ---

stream_pools::event_use::event_use(stream_pools& of, std::shared_ptr<event_store> store)
    : of_(of), store_(std::move(store)) {
  const std::lock_guard lock(of_.mutex_);
  is_there_ = !store_->is_over;
  store_->users += is_there_ ? 1 : 0;
}

stream_pools::event_use::~event_use() {
  const std::lock_guard lock(of_.mutex_);
  store_->users -= is_there_ ? 1 : 0;
  if (store_->users == 0 && store_->is_over) {
    of_.unused_.notify_all();
  }
}

void stream_pools::end_events(CUcontext ended) {
  std::unique_lock lock(mutex_);
  const auto found = events_.extract(ended);
  if (found.empty()) {
    return;
  }
  const std::shared_ptr<event_store> store = found.mapped();
  store->is_over = true;
  unused_.wait(lock, [&] { return store->users == 0; });
}

// --- Pools ---

void stream_pools::add_default(CUmemoryPool handle, CUdevice device) {
  CUmemoryPool found = nullptr;
  if (call_driver<CUresult>(id_cuDeviceGetDefaultMemPool, &found, device) == CUDA_SUCCESS &&
      handle == found) {
    add(handle, plain_pool(device));
  }
}

void stream_pools::add(CUmemoryPool handle, const CUmemPoolProps& properties) {
  const CUmemPoolProps plain = plain_pool(properties.location.id);
  if (!has_joined() || std::memcmp(&properties, &plain, sizeof plain) != 0) {
    return;
  }
  auto made = std::make_shared<pool>();
  made->handle = handle;
  made->device = properties.location.id;
  const std::lock_guard lock(mutex_);
  pools_.try_emplace(handle, std::move(made));
}

// --- Allocations ---

bool stream_pools::take(pool& from, std::size_t bytes, std::uint64_t stream, CUdeviceptr* address) {
  const std::lock_guard lock(mutex_);
  const auto found = from.blocks[bytes < large ? 0 : 1].take(bytes, stream);
  if (found) {
    *address = *found;
    note_used(from, pool_blocks::rounded(bytes));
  }
  return found.has_value();
}

bool stream_pools::has_after(pool& from, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return from.blocks[bytes < large ? 0 : 1].has_after(bytes);
}

bool stream_pools::is_shared(const pool& one) {
  const std::lock_guard lock(mutex_);
  return one.is_shared;
}

bool stream_pools::take_after(pool& from, std::size_t bytes, CUstream stream,
                              CUdeviceptr* address) {
  pool_blocks& blocks = from.blocks[bytes < large ? 0 : 1];
  pool_blocks::point after;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks.take_after(bytes, after);
    if (!found) {
      return false;
    }
    *address = *found;
    note_used(from, pool_blocks::rounded(bytes));
  }
  bool waits = true;
  if (const event_use use(*this, after->store); use) {
    waits = call_driver<CUresult>(id_cuStreamWaitEvent, stream, after->event, 0U) == CUDA_SUCCESS;
  }
  const std::lock_guard lock(mutex_);
  if (!waits) {
    note_unused(from, blocks.begin_free(*address));
    blocks.end_free(*address, std::move(after));
  }
  after.reset();  // its event may go to another thread
  return waits;
}

stream_pools::answer stream_pools::allocate(CUdeviceptr* address, std::size_t bytes,
                                            CUmemoryPool handle, CUstream stream) {
  place where;
  if (!has_joined() || !find_place(stream, where)) {
    return std::nullopt;
  }
  const std::shared_ptr<pool> from = find_pool(handle, where);
  if (from == nullptr) {
    return std::nullopt;
  }
  if (address == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (swappable_memory::physical(bytes) % pool_blocks::unit != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;  // more than addresses can say
  }
  if (take(*from, bytes, where.stream, address)) {
    return CUDA_SUCCESS;
  }
  if (from->is_opportunistic) {
    look_at_points(*from);
    if (take(*from, bytes, where.stream, address)) {
      return CUDA_SUCCESS;
    }
  }
  const bool may_add = from->adds_dependencies;
  if (may_add && has_after(*from, bytes) && !would_fit(swappable_memory::physical(bytes)) &&
      take_after(*from, bytes, stream, address)) {
    return CUDA_SUCCESS;
  }
  const driver_scope scope(where.context);
  if (!swappable().begin()) {
    return std::nullopt;
  }
  const CUresult result = grow(from, bytes, where, address);
  if (result != CUDA_SUCCESS && is_shared(*from)) {
    return std::nullopt;
  }
  return result == CUDA_ERROR_OUT_OF_MEMORY && may_add && take_after(*from, bytes, stream, address)
             ? CUDA_SUCCESS
             : result;
}

CUresult stream_pools::grow(const std::shared_ptr<pool>& to, std::size_t bytes, const place& where,
                            CUdeviceptr* address) {
  return with_swappable_account(swappable_memory::physical(bytes),
                                [&](const std::shared_ptr<holding>& held) {
                                  return make_range(to, bytes, where, held, address);
                                });
}

CUresult stream_pools::make_range(const std::shared_ptr<pool>& to, std::size_t bytes,
                                  const place& where, const std::shared_ptr<holding>& held,
                                  CUdeviceptr* address) {
  auto made = std::make_shared<range>();
  made->of = to;
  made->kind = bytes < large ? 0 : 1;
  made->bytes = swappable_memory::physical(bytes);
  made->held = held;
  CUdeviceptr begin = 0;
  CUresult result = call_driver<CUresult>(id_cuMemAddressReserve, &begin, made->bytes,
                                          std::size_t{0}, CUdeviceptr{0}, 0ULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const CUmemAllocationProp properties = swappable_memory::properties_on(where.device);
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (std::size_t at = 0; at < made->bytes && result == CUDA_SUCCESS;) {
    const std::size_t size = std::min<std::size_t>(chunk_bytes_max, made->bytes - at);
    chunk& one = made->chunks.emplace_back(properties, size, where.context, held);
    one.mappings.push_back({begin + at, {access}});
    result = swappable().add(one);
    at += size;
  }
  if (result != CUDA_SUCCESS) {
    made->chunks.pop_back();  // it was not made
    end_range(begin, *made);
    return result;
  }
  crash_point("pool_range_made");
  std::unique_lock lock(mutex_);
  if (to->is_shared) {  // meanwhile; share() has not seen this range
    lock.unlock();
    end_range(begin, *made);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  pool_blocks& blocks = to->blocks[made->kind];
  blocks.add_range(begin, made->bytes);
  to->amounts.reserved += made->bytes;
  to->amounts.reserved_high = std::max(to->amounts.reserved_high, to->amounts.reserved);
  cached_.fetch_add(made->bytes, std::memory_order_relaxed);
  ranges_[begin] = std::move(made);
  ranges_count_.store(ranges_.size(), std::memory_order_relaxed);
  *address = *blocks.take(bytes, where.stream);
  note_used(*to, pool_blocks::rounded(bytes));
  return CUDA_SUCCESS;
}

void stream_pools::end_range(CUdeviceptr begin, range& gone) {
  for (chunk& one : gone.chunks) {
    swappable().remove(one);
  }
  crash_point("pool_range_unmade");
  call_driver<CUresult>(id_cuMemAddressFree, begin, gone.bytes);
}

// --- Frees ---

pool_blocks::point stream_pools::record(CUstream stream, const place& where, std::uint64_t number,
                                        CUresult& result) {
  auto made = std::make_shared<stream_point>();
  made->stream = where.stream;
  made->number = number;
  made->context = where.context;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<event_store>& store = events_[where.context];
    if (store == nullptr) {
      store = std::make_shared<event_store>();
    }
    made->store = store;
    if (!store->spare.empty()) {
      made->event = store->spare.back();
      store->spare.pop_back();
    }
  }
  const event_use use(*this, made->store);
  result = use ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (use && made->event == nullptr) {
    const driver_scope scope(where.context);
    result = scope.is_there() ? call_driver<CUresult>(id_cuEventCreate, &made->event,
                                                      unsigned{CU_EVENT_DISABLE_TIMING})
                              : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (result != CUDA_SUCCESS) {
      made->event = nullptr;
      return nullptr;
    }
  }
  if (result == CUDA_SUCCESS) {
    result = call_driver<CUresult>(id_cuEventRecord, made->event, stream);
  }
  if (result != CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    made.reset();
  }
  return made;
}

std::optional<stream_pools::freeing> stream_pools::begin_free(CUdeviceptr address) {
  if (ranges_count_.load(std::memory_order_relaxed) == 0) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  const auto found = range_at(address);
  if (found == ranges_.end()) {
    return std::nullopt;
  }
  const std::shared_ptr<range>& from = found->second;
  return freeing{from, from->of->blocks[from->kind].begin_free(address), ++last_number_};
}

stream_pools::answer stream_pools::free_in(CUdeviceptr address, CUstream stream) {
  const std::optional<freeing> begun = begin_free(address);
  if (!begun.has_value()) {
    return std::nullopt;
  }
  const auto& [from, bytes, number] = *begun;
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  place where;
  CUresult result = CUDA_ERROR_INVALID_CONTEXT;
  pool_blocks::point after =
      find_place(stream, where) ? record(stream, where, number, result) : nullptr;
  crash_point("pool_free_recorded");
  const std::lock_guard lock(mutex_);
  pool_blocks& blocks = from->of->blocks[from->kind];
  if (after == nullptr) {
    blocks.cancel_free(address);
  } else if (blocks.end_free(address, std::move(after))) {
    note_unused(*from->of, bytes);
  }
  return result;
}

void stream_pools::end_deferred() {
  std::vector<deferred> ended;
  if (has_captures()) {
    return;  // waiting for a context would end them
  }
  {
    const std::lock_guard lock(mutex_);
    ended.swap(deferred_);
  }
  for (const deferred& one : ended) {
    {
      const driver_scope scope(swappable().context_of(one.from->chunks.front()));
      call_driver<CUresult>(id_cuCtxSynchronize);
    }
    const std::lock_guard lock(mutex_);
    if (one.from->of->blocks[one.from->kind].end_free(one.address, nullptr)) {
      note_unused(*one.from->of, one.bytes);
    }
  }
}

stream_pools::answer stream_pools::free_now(CUdeviceptr address) {
  const std::optional<freeing> begun = begin_free(address);
  if (!begun.has_value()) {
    return std::nullopt;
  }
  const auto& [from, bytes, number] = *begun;
  if (bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  {
    const std::lock_guard lock(mutex_);
    deferred_.push_back({address, bytes, from});
    may_release_.store(true, std::memory_order_relaxed);
  }
  end_deferred();
  release_unused();
  return CUDA_SUCCESS;
}

}  // namespace gdev

// Memory of pools that is given back, stays on the GPU, or ends with its context.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "base/crash_point.hpp"
#include "base/saturating.hpp"
#include "interposer/client.hpp"
#include "interposer/driver.hpp"
#include "interposer/driver_scope.hpp"
#include "interposer/gate.hpp"
#include "interposer/held_page.hpp"
#include "interposer/pools.hpp"
#include "interposer/swappable_memory.hpp"
#include "protocol/account.hpp"

namespace gdev {

namespace {

/** How long an allocation waits for work that uses cached memory. */
constexpr std::chrono::seconds room_patience{1};

}  // namespace

// --- Pools ---

std::shared_ptr<stream_pools::pool> stream_pools::get(CUmemoryPool handle) {
  const std::lock_guard lock(mutex_);
  return pool_of(handle);
}

void stream_pools::retire(const std::shared_ptr<pool>& gone) {
  if (pool_of(gone->handle) == gone) {
    pools_.erase(gone->handle);
    gone->threshold = 0;
    destroyed_.push_back(gone);
  }
}

void stream_pools::destroy(const std::shared_ptr<pool>& gone) {
  {
    const std::lock_guard lock(mutex_);
    retire(gone);
  }
  release_now();
}

void stream_pools::add_new(CUmemoryPool handle, const CUmemPoolProps& properties) {
  {
    const std::lock_guard lock(mutex_);
    if (const std::shared_ptr<pool> old = pool_of(handle); old != nullptr) {
      retire(old);  // another thread destroys it: the driver has, and its handle is used again
    }
  }
  add(handle, properties);
}

void stream_pools::know(CUmemoryPool handle) {
  {
    const std::lock_guard lock(mutex_);
    if (pool_of(handle) != nullptr) {
      return;
    }
  }
  int devices = 0;
  static_cast<void>(call_driver<CUresult>(id_cuDeviceGetCount, &devices));
  for (CUdevice device = 0; device < devices; ++device) {
    add_default(handle, device);
  }
}

pool_amounts stream_pools::amounts(CUmemoryPool handle) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<pool> found = pool_of(handle);
  return found == nullptr ? pool_amounts{} : found->amounts;
}

void stream_pools::set(CUmemoryPool handle, CUmemPool_attribute which, const void* value) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<pool> found = pool_of(handle);
  if (found == nullptr) {
    return;
  }
  const auto is_on = [value] { return *static_cast<const int*>(value) != 0; };
  switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      found->threshold = *static_cast<const cuuint64_t*>(value);
      may_release_.store(true, std::memory_order_relaxed);
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: found->is_opportunistic = is_on(); break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      found->adds_dependencies = is_on();
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      found->amounts.reserved_high = found->amounts.reserved;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: found->amounts.used_high = found->amounts.used; break;
    default: break;
  }
}

// --- Giving back ---

bool stream_pools::look_at(pool_blocks& of, pool_blocks::point one) {
  if (one == nullptr) {
    return false;
  }
  bool is_reached = true;
  if (const event_use use(*this, one->store); use) {
    const driver_scope scope(one->context);
    is_reached = call_driver<CUresult>(id_cuEventQuery, one->event) == CUDA_SUCCESS;
  }
  const std::lock_guard lock(mutex_);
  if (is_reached) {
    of.reach(one->stream, one->number);
  }
  one.reset();  // its event may go to another thread
  return is_reached;
}

void stream_pools::look_at_points(pool_blocks& of, std::uint64_t stream) {
  const auto last = [&] {
    const std::lock_guard lock(mutex_);
    return of.last_point(stream);
  };
  const auto at = [&](std::size_t index) {
    const std::lock_guard lock(mutex_);
    return of.point_at(stream, index);
  };
  // Most often all are reached, or none is. Otherwise in steps that grow, and then shrink: each
  // that succeeds takes its points away.
  if (look_at(of, last())) {
    return;
  }
  std::size_t step = 1;
  while (look_at(of, at(step - 1))) {
    step *= 2;
  }
  while ((step /= 2) != 0) {
    static_cast<void>(look_at(of, at(step - 1)));
  }
}

void stream_pools::look_at_points(pool& of) {
  for (pool_blocks& one : of.blocks) {
    std::vector<std::uint64_t> streams;
    {
      const std::lock_guard lock(mutex_);
      streams = one.waiting_streams();
    }
    for (const std::uint64_t stream : streams) {
      look_at_points(one, stream);
    }
  }
}

std::optional<std::pair<pool_blocks*, CUdeviceptr>> stream_pools::take_range(pool& of,
                                                                             std::size_t excess,
                                                                             bound kept_is) {
  auto& [small, other] = of.blocks;  // ranges of the first are the smallest that there are
  for (pool_blocks* const one : {&small, &other}) {
    const auto begin = excess == 0                  ? std::nullopt
                       : kept_is == bound::at_least ? one->take_largest_range(excess)
                                                    : one->take_smallest_range(excess);
    if (begin) {
      return std::pair(one, *begin);
    }
  }
  for (pool_blocks* const one : {&other, &small}) {
    const bool may_take = excess != 0 && kept_is == bound::at_most;
    if (const auto begin = may_take ? one->take_largest_range(excess) : std::nullopt) {
      return std::pair(one, *begin);
    }
  }
  return std::nullopt;
}

bool stream_pools::release(pool& of, std::uint64_t kept, bound kept_is) {
  look_at_points(of);
  ranges gone;  // their parts of the account are returned without the lock
  bool is_pending = false;
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<pool_blocks*, CUdeviceptr>> held;
    while (const auto found = take_range(of, less(of.amounts.reserved, kept), kept_is)) {
      const auto [blocks, begin] = *found;
      auto taken = ranges_.extract(begin);
      const std::size_t bytes = taken.mapped()->bytes;
      of.amounts.reserved -= bytes;
      if (taken.mapped()->users != 0) {
        held.push_back(*found);
        ranges_.insert(std::move(taken));
        continue;
      }
      cached_.fetch_sub(bytes, std::memory_order_relaxed);
      gone.insert(std::move(taken));
    }
    for (const auto& [blocks, begin] : held) {
      const std::size_t bytes = ranges_.at(begin)->bytes;
      blocks->add_range(begin, bytes);
      of.amounts.reserved += bytes;
    }
    ranges_count_.store(ranges_.size(), std::memory_order_relaxed);
    is_pending = of.amounts.reserved > kept && of.has_points();
  }
  if (!gone.empty()) {
    const memory_pass in_place;
    for (const auto& [begin, one] : gone) {
      // Another thread may capture.
      const driver_scope scope(swappable().context_of(one->chunks.front()));
      end_range(begin, *one);
      crash_point("pool_range_ended");
    }
  }
  return is_pending;
}

void stream_pools::release_now() {
  may_release_.store(false, std::memory_order_relaxed);
  end_deferred();
  bool is_pending = false;
  for (const std::shared_ptr<pool>& one : all_pools()) {
    std::uint64_t kept = 0;
    bool has_more = false;
    {
      const std::lock_guard lock(mutex_);
      kept = one->threshold;
      has_more = one->amounts.reserved > kept;
    }
    is_pending |= has_more && release(*one, kept, bound::at_most);
  }
  const std::lock_guard lock(mutex_);
  if (is_pending || !deferred_.empty()) {
    may_release_.store(true, std::memory_order_relaxed);
  }
  std::erase_if(destroyed_, [](const auto& one) { return one->amounts.reserved == 0; });
}

bool stream_pools::would_fit(std::uint64_t bytes) {
  if (has_daemon()) {  // what it has granted fits, without a question
    const held_page page(true);
    const account_state now = page ? page->account.load() : account_state{};
    if (less(now.granted, now.used) >= units_of(bytes)) {
      return true;
    }
  }
  memory_facts facts;
  return !ask_memory(facts) || (bytes <= less(facts.limit, facts.used) &&
                                (facts.most == 0 || bytes <= less(facts.most, facts.own)));
}

void stream_pools::make_room(std::uint64_t bytes) {
  if (ranges_count_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  if (may_release_.load(std::memory_order_relaxed)) {
    end_deferred();
  }
  if (cached_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  const auto end = std::chrono::steady_clock::now() + room_patience;
  for (bool is_pending = true; is_pending && !would_fit(bytes);) {
    is_pending = false;
    for (const std::shared_ptr<pool>& one : all_pools()) {
      is_pending |= release(*one, 0, bound::at_most);
    }
    if (is_pending) {
      usleep(500);
    }
    is_pending &= std::chrono::steady_clock::now() < end;
  }
}

void stream_pools::trim(CUmemoryPool handle, std::uint64_t kept) {
  std::shared_ptr<pool> found;
  {
    const std::lock_guard lock(mutex_);
    found = pool_of(handle);
  }
  if (found != nullptr) {
    end_deferred();
    static_cast<void>(release(*found, kept, bound::at_least));
  }
}

// --- Memory that others use ---

std::vector<std::shared_ptr<stream_pools::range>> stream_pools::hold(const pool* of,
                                                                     CUdeviceptr address,
                                                                     std::size_t bytes) {
  std::vector<std::shared_ptr<range>> held;
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, one] : ranges_) {
    if ((of == nullptr || one->of.get() == of) && begin < address + bytes &&
        address < begin + one->bytes) {
      ++one->users;
      held.push_back(one);
    }
  }
  return held;
}

void stream_pools::keep_on_gpu(const std::vector<std::shared_ptr<range>>& held) {
  for (const std::shared_ptr<range>& one : held) {
    for (chunk& part : one->chunks) {
      swappable().wire(part);
    }
  }
}

void stream_pools::let_go(const std::vector<std::shared_ptr<range>>& held) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<range>& one : held) {
    --one->users;
  }
}

void stream_pools::wire(CUdeviceptr address, std::size_t bytes) {
  if (ranges_count_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  const auto held = hold(nullptr, address, bytes);
  keep_on_gpu(held);
  let_go(held);
}

CUresult stream_pools::share(CUmemoryPool handle, const CUmemAccessDesc* access,
                             std::size_t count) {
  std::shared_ptr<pool> of;
  {
    const std::lock_guard lock(mutex_);
    of = pool_of(handle);
    if (of == nullptr) {
      return CUDA_SUCCESS;
    }
    of->is_shared |= std::any_of(access, access + count, [&](const CUmemAccessDesc& one) {
      return one.location.type != CU_MEM_LOCATION_TYPE_DEVICE || one.location.id != of->device;
    });
    if (!of->is_shared) {
      return CUDA_SUCCESS;
    }
  }
  const submission in_turn(work::other);
  const auto held = hold(of.get(), 0, ~std::size_t{0});
  keep_on_gpu(held);
  CUresult result = CUDA_SUCCESS;
  for (const std::shared_ptr<range>& one : held) {
    if (result == CUDA_SUCCESS) {
      const CUdeviceptr begin = one->chunks.front().mappings.front().address;
      result = call_driver<CUresult>(id_cuMemSetAccess, begin, one->bytes, access, count);
    }
  }
  let_go(held);
  return result;
}

// --- Contexts ---

void stream_pools::end_context(CUcontext ended) {
  {
    const std::lock_guard lock(mutex_);
    places_.clear();
    if (ranges_.empty() && !events_.contains(ended)) {
      return;
    }
  }
  const driver_scope scope(ended);
  call_driver<CUresult>(id_cuCtxSynchronize);
  end_events(ended);
  // What no other context of the device can copy, free_all() has left with this one.
  ranges left;
  {
    const std::lock_guard lock(mutex_);
    left = ranges_;
  }
  std::erase_if(left, [ended](const auto& one) {
    return swappable().context_of(one.second->chunks.front()) != ended;
  });
  const std::vector<std::shared_ptr<pool>> all = all_pools();
  ranges gone;
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<pool>& of : all) {
      for (pool_blocks& blocks : of->blocks) {
        for (const std::uint64_t stream : blocks.waiting_streams()) {
          const pool_blocks::point last = blocks.last_point(stream);
          if (last->context == ended) {
            blocks.reach(stream, last->number);
          }
        }
      }
    }
    for (const auto& [begin, which] : left) {
      const auto one = ranges_.find(begin);
      if (one == ranges_.end() || one->second != which) {
        continue;  // another thread has given it back
      }
      pool& of = *which->of;
      const std::size_t used = of.blocks[which->kind].remove_range(begin);
      of.amounts.used -= used;
      of.amounts.reserved -= which->bytes;
      cached_.fetch_sub(which->bytes - used, std::memory_order_relaxed);
      gone.insert(ranges_.extract(one));
    }
    ranges_count_.store(ranges_.size(), std::memory_order_relaxed);
  }
  for (const auto& [begin, one] : gone) {
    end_range(begin, *one);
  }
}

}  // namespace gdev

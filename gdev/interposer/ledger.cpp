#include "interposer/ledger.hpp"

#include <iterator>

#include "base/crash_point.hpp"
#include "base/endless.hpp"
#include "interposer/client.hpp"

namespace gdev {

namespace {

endless<ledger> all_allocations;
endless<ledger> all_arrays;
endless<chunk_ledger> all_chunks;

}  // namespace

ledger& allocations() noexcept { return all_allocations.get(); }
ledger& arrays() noexcept { return all_arrays.get(); }
chunk_ledger& chunks() noexcept { return all_chunks.get(); }

void forget_ledgers() noexcept {
  all_allocations.forget();
  all_arrays.forget();
  all_chunks.forget();
}

holding::~holding() {
  if (bytes_ != 0) {
    free_memory(bytes_, where_, &part_);
  }
}

CUresult holding::take(std::uint64_t bytes, memory_place where) noexcept {
  if (use_memory(bytes, where, &part_) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  bytes_ = bytes;
  where_ = where;
  crash_point("memory_taken");
  return CUDA_SUCCESS;
}

void ledger::add(std::uint64_t key, entry one) {
  const std::lock_guard lock(mutex_);
  std::swap(entries_[key], one);
}

entry ledger::take(std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return {};
  }
  entry taken = std::move(found->second);
  entries_.erase(found);
  return taken;
}

std::map<std::uint64_t, entry> ledger::take_all(CUcontext context) {
  std::map<std::uint64_t, entry> taken;
  const std::lock_guard lock(mutex_);
  for (auto one = entries_.begin(); one != entries_.end();) {
    const auto next = std::next(one);
    if (one->second.of == context) {
      taken.insert(entries_.extract(one));
    }
    one = next;
  }
  return taken;
}

void ledger::put_back(std::map<std::uint64_t, entry> taken) {
  const std::lock_guard lock(mutex_);
  entries_.merge(taken);
}

void ledger::hand_over(CUcontext from, CUcontext to) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, one] : entries_) {
    one.of = one.of == from ? to : one.of;
  }
}

void chunk_ledger::add(std::uint64_t handle, std::shared_ptr<holding> held) {
  const std::lock_guard lock(mutex_);
  reference& one = handles_[handle];
  one.held = std::move(held);
  ++one.count;
}

std::shared_ptr<holding> chunk_ledger::release(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return nullptr;
  }
  std::shared_ptr<holding> held = found->second.held;
  if (--found->second.count == 0) {
    handles_.erase(found);
  }
  return held;
}

void chunk_ledger::retain(std::uint64_t handle, CUdeviceptr address) {
  std::shared_ptr<holding> held;
  {
    const std::lock_guard lock(mutex_);
    const auto after = mapped_.upper_bound(address);
    if (after == mapped_.begin() ||
        address - std::prev(after)->first >= std::prev(after)->second.bytes) {
      return;  // imported, or of another kind
    }
    held = std::prev(after)->second.held;
  }
  add(handle, std::move(held));
}

void chunk_ledger::map(CUdeviceptr address, std::uint64_t bytes, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  if (const auto found = handles_.find(handle); found != handles_.end()) {
    mapped_[address] = {bytes, found->second.held};
  }
}

chunk_ledger::mappings chunk_ledger::unmap(CUdeviceptr address, std::uint64_t bytes) {
  mappings taken;
  const std::lock_guard lock(mutex_);
  const auto end = mapped_.lower_bound(address + bytes);
  for (auto one = mapped_.lower_bound(address); one != end;) {
    const auto next = std::next(one);
    taken.insert(mapped_.extract(one));
    one = next;
  }
  return taken;
}

void chunk_ledger::put_back(mappings taken) {
  const std::lock_guard lock(mutex_);
  mapped_.merge(taken);
}

}  // namespace gdev

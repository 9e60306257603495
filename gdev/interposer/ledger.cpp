#include "interposer/ledger.hpp"

#include "interposer/client.hpp"

namespace gdev {

holding::~holding() {
  if (bytes_ != 0) {
    free_memory(bytes_);
  }
}

CUresult holding::take(std::uint64_t bytes) noexcept {
  if (use_memory(bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  bytes_ += bytes;
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

void ledger::drop(CUcontext context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& one) { return one.second.of == context; });
}

void chunk_ledger::create(std::uint64_t handle, std::shared_ptr<holding> held) {
  const std::lock_guard lock(mutex_);
  handles_[handle] = {std::move(held), 1};
}

void chunk_ledger::retain(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  if (const auto found = handles_.find(handle); found != handles_.end()) {
    ++found->second.count;
  }
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

void chunk_ledger::map(CUdeviceptr address, std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  if (const auto found = handles_.find(handle); found != handles_.end()) {
    mapped_[address] = found->second.held;
  }
}

void chunk_ledger::unmap(CUdeviceptr address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  mapped_.erase(mapped_.lower_bound(address), mapped_.lower_bound(address + bytes));
}

}  // namespace gdev

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "base/crash_point.hpp"
#include "interposer/client.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

swappable_memory::range* swappable_memory::range_at(CUdeviceptr address, CUdeviceptr* begin) {
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) {
    return nullptr;
  }
  const auto found = std::prev(after);
  if (address - found->first >= found->second.bytes) {
    return nullptr;
  }
  *begin = found->first;
  return &found->second;
}

bool swappable_memory::wire(CUdeviceptr address) {
  std::vector<std::pair<std::byte*, std::size_t>> copies;
  {
    const std::lock_guard lock(mutex_);
    CUdeviceptr begin = 0;
    range* const found = range_at(address, &begin);
    if (found == nullptr) {
      return false;
    }
    if (found->is_wired) {
      return true;
    }
    found->is_wired = true;
    crash_point("range_wired");
    // All of it is on the GPU, but in a broken context: the gate opens only when all is in.
    size_ -= found->size;
    resident_ -= std::min<std::uint64_t>(resident_, found->size);
    publish_memory(size_, resident_);
    for (chunk& one : found->chunks) {
      if (one.copy != nullptr) {
        copies.emplace_back(std::exchange(one.copy, nullptr), one.bytes);
      }
      if (one.file != swap_file::none) {
        files_.give(std::exchange(one.file, swap_file::none), one.bytes);
      }
    }
  }
  for (const auto& [copy, bytes] : copies) {
    pool_.give(copy, bytes);
  }
  return true;
}

std::vector<std::pair<CUdeviceptr, std::size_t>> swappable_memory::chunks_of(CUdeviceptr address) {
  std::vector<std::pair<CUdeviceptr, std::size_t>> all;
  const std::lock_guard lock(mutex_);
  CUdeviceptr at = 0;
  if (const range* const found = range_at(address, &at); found != nullptr) {
    for (const chunk& one : found->chunks) {
      all.emplace_back(at, one.bytes);
      at += one.bytes;
    }
  }
  return all;
}

std::shared_ptr<void> swappable_memory::keep(CUdeviceptr address, std::shared_ptr<void> object) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) {
    return nullptr;
  }
  if (found->second.kept == nullptr) {
    found->second.kept = std::move(object);
  }
  return found->second.kept;
}

}  // namespace gdev

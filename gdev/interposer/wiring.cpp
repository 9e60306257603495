#include <algorithm>
#include <iterator>
#include <memory>
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

void swappable_memory::stay(chunk& wired, std::vector<host_place>& places) {
  if (std::exchange(wired.is_wired, true)) {
    return;
  }
  // All is on the GPU, but in a broken context: the gate opens only when all is in.
  if (wired.on_host != nullptr) {
    wired.on_host->keep_on_host();
  } else {
    size_ -= wired.bytes;
    resident_ -= wired.handle != 0 ? wired.bytes : 0;
  }
  publish_memory(size_, resident_);
  for (host_place& part : wired.places) {
    places.push_back(part);
    part.copy = nullptr;
    part.file = swap_file::none;
  }
}

void swappable_memory::give_places(std::vector<host_place> places) {
  crash_point("wired");
  for (host_place& one : places) {
    give_place(one);
  }
}

void swappable_memory::wire(chunk& wired) {
  std::vector<host_place> places;
  {
    const std::lock_guard lock(mutex_);
    stay(wired, places);
  }
  give_places(std::move(places));
}

bool swappable_memory::wire(CUdeviceptr address) {
  std::vector<host_place> places;
  {
    const std::lock_guard lock(mutex_);
    CUdeviceptr begin = 0;
    range* const found = range_at(address, &begin);
    if (found == nullptr) {
      return false;
    }
    for (chunk& one : found->chunks) {
      stay(one, places);
    }
  }
  give_places(std::move(places));
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

// A list of freed GPU memory, for later allocations.
//
// Locks. `mutex_` guards the fields, and is not held during a call of the driver. `freeing_` is
// held while the driver frees memory, which waits for all kernels. Only an allocation that finds no
// memory waits for it. No thread takes one of them while it holds the other, except that `mutex_`
// may be taken while `freeing_` is held.
#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "gpufs/error.hpp"

namespace gpufs {

// Keeps freed memory of the current GPU for later allocations of the same size, because the driver
// takes at least 0.1 ms to allocate or free. Thread-safe.
//
// `Driver` has static functions: try_allocate() returns null if there is no memory, allocate()
// throws gpufs::error then, free() waits for all kernels, and so does synchronize().
template <class Driver>
class kept_memory {
 public:
  // Throws gpufs::error (ENOMEM). Waits for kernels only if there is no memory.
  void* take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    if (void* const kept = take_kept(size); kept != nullptr) return kept;
    void* p = Driver::try_allocate(size);
    if (p == nullptr) {
      const std::lock_guard lock(freeing_);
      free_kept();
      p = Driver::allocate(size);
    }
    try {
      const std::lock_guard lock(mutex_);
      sizes_.emplace(p, size);
    } catch (...) {
      free_now(p);
      throw error(ENOMEM, "allocate");
    }
    return p;
  }
  // Waits for all kernels, because they may use the memory.
  void give(void* p) noexcept {
    if (p == nullptr) return;
    Driver::synchronize();
    if (!keep(p)) free_now(p);
  }
  void clear() noexcept {
    const std::lock_guard lock(freeing_);
    free_kept();
  }

 private:
  static constexpr std::size_t free_bytes_max = std::size_t{128} << 20;
  using memory_by_size = std::multimap<std::size_t, void*>;

  // Rounds up by at most an eighth to one of a few sizes, so that freed memory fits later requests.
  static std::size_t rounded(std::size_t bytes) {
    if (bytes > free_bytes_max) return bytes;  // never kept
    const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes) / 8, 512);
    return std::max<std::size_t>((bytes + step - 1) / step, 1) * step;
  }
  // Returns null if no memory of this size is kept.
  void* take_kept(std::size_t size) {
    const std::lock_guard lock(mutex_);
    const auto there = free_.find(size);
    if (there == free_.end()) return nullptr;
    void* const p = there->second;
    free_.erase(there);
    free_bytes_ -= size;
    return p;
  }
  // Returns false if the memory is to be freed. Then it is no longer recorded.
  bool keep(void* p) noexcept {
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(p);
    if (known == sizes_.end()) return false;
    if (free_bytes_ + known->second <= free_bytes_max) {
      try {
        free_.emplace(known->second, p);
        free_bytes_ += known->second;
        return true;
      } catch (const std::bad_alloc&) {  // no memory to record it
      }
    }
    sizes_.erase(known);
    return false;
  }
  void free_now(void* p) noexcept {
    const std::lock_guard lock(freeing_);
    Driver::free(p);
  }
  // The caller holds `freeing_`.
  void free_kept() noexcept {
    memory_by_size all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(free_);
      free_bytes_ = 0;
      for (const auto& [size, p] : all) sizes_.erase(p);
    }
    for (const auto& [size, p] : all) Driver::free(p);
  }

  std::mutex freeing_, mutex_;
  memory_by_size free_;
  std::unordered_map<void*, std::size_t> sizes_;  // of all memory taken, and of all that is kept
  std::size_t free_bytes_ = 0;
};

}  // namespace gpufs

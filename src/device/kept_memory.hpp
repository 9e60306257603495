// A list of freed GPU memory, for later allocations.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "device/cuda_calls.hpp"
#include "gpufs/error.hpp"

namespace gpufs {

// Keeps freed memory of the current GPU for later allocations of the same size, because the driver
// takes at least 0.1 ms to allocate or free. Thread-safe.
class kept_memory {
 public:
  // Throws gpufs::error (ENOMEM).
  void* take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    void* p = nullptr;
    if (const auto there = free_.find(size); there != free_.end()) {
      p = there->second;
      free_.erase(there);
      free_bytes_ -= size;
      return p;
    }
    if (cudaMalloc(&p, size) != cudaSuccess) {
      (void)cudaGetLastError();
      clear();
      check(cudaMalloc(&p, size), "cudaMalloc");
    }
    try {
      sizes_.emplace(p, size);
    } catch (...) {
      (void)cudaFree(p);
      throw error(ENOMEM, "allocate");
    }
    return p;
  }
  // Waits for all kernels, as cudaFree does, because they may use the memory.
  void give(void* p) noexcept {
    if (p == nullptr) return;
    (void)cudaDeviceSynchronize();
    const std::lock_guard lock(mutex_);
    const auto known = sizes_.find(p);
    if (known != sizes_.end() && free_bytes_ + known->second <= free_bytes_max) {
      try {
        free_.emplace(known->second, p);
        free_bytes_ += known->second;
        return;
      } catch (const std::bad_alloc&) {  // no memory to record it: free it below
      }
    }
    if (known != sizes_.end()) sizes_.erase(known);
    (void)cudaFree(p);
  }
  void clear() noexcept {
    for (const auto& [size, p] : free_) {
      sizes_.erase(p);
      (void)cudaFree(p);
    }
    free_.clear();
    free_bytes_ = 0;
  }

 private:
  static constexpr std::size_t free_bytes_max = std::size_t{128} << 20;
  // Rounds up by at most an eighth to one of a few sizes, so that freed memory fits later requests.
  static std::size_t rounded(std::size_t bytes) {
    if (bytes > free_bytes_max) return bytes;  // never kept
    const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes) / 8, 512);
    return std::max<std::size_t>((bytes + step - 1) / step, 1) * step;
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
  std::unordered_map<void*, std::size_t> sizes_;  // of all memory taken
  std::size_t free_bytes_ = 0;
};

}  // namespace gpufs

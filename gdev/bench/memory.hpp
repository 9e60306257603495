/** Memory of the device and of the host, for the benchmark programs. */
#pragma once

#include "bench/program.hpp"

namespace gdev_bench {

/** An array in device memory. */
template <typename T>
class device_array {
 public:
  /** Allocates without initializing. */
  explicit device_array(std::size_t count) : count_(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
  }
  /** Allocates, and copies `values` to the device. */
  explicit device_array(const std::vector<T>& values) : device_array(values.size()) {
    copy_from(values.data());
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { check(cudaFree(data_), "cudaFree"); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return count_; }

  /** Copies all elements from the host. */
  void copy_from(const T* values) {
    check(cudaMemcpy(data_, values, count_ * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy to the device");
  }
  /** Copies the first `count` elements to the host. Waits for kernels of the default stream. */
  void copy_to(T* values, std::size_t count) const {
    check(cudaMemcpy(values, data_, count * sizeof(T), cudaMemcpyDeviceToHost),
          "cudaMemcpy to the host");
  }
  /** Copies all elements to the host. Waits for kernels of the default stream. */
  void copy_to(std::vector<T>& values) const { copy_to(values.data(), count_); }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/** Host memory: pinned, which the GPU reaches by itself, or pageable. */
class host_memory {
 public:
  host_memory(std::size_t bytes, bool is_pinned) : is_pinned_(is_pinned) {
    if (is_pinned) {
      check(cudaMallocHost(&data_, bytes), "cudaMallocHost");
    } else if (data_ = std::malloc(bytes); data_ == nullptr) {
      fail("malloc: out of memory");
    }
  }
  host_memory(const host_memory&) = delete;
  host_memory& operator=(const host_memory&) = delete;
  ~host_memory() {
    if (is_pinned_) {
      check(cudaFreeHost(data_), "cudaFreeHost");
    } else {
      std::free(data_);
    }
  }
  [[nodiscard]] void* data() const { return data_; }

 private:
  bool is_pinned_;
  void* data_ = nullptr;
};

}  // namespace gdev_bench

// Common code of CUDA programs without gpufs. For nvcc.
#pragma once

#include <cuda_runtime.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "gpufs/error.hpp"

namespace gpufs::rival {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // otherwise the next launch would report it
  throw error(status == cudaErrorMemoryAllocation ? ENOMEM : EIO,
              std::string(what) + ": " + cudaGetErrorString(status));
}

// Half of a thread's double buffer.
struct half_buffer {
  char* pinned = nullptr;
  char* device = nullptr;
  cudaStream_t stream = nullptr;
  explicit half_buffer(std::uint64_t bytes) {
    check(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    check(cudaMalloc(&device, bytes), "cudaMalloc");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~half_buffer() {
    cudaStreamDestroy(stream);
    cudaFree(device);
    cudaFreeHost(pinned);
  }
  half_buffer(const half_buffer&) = delete;
  half_buffer& operator=(const half_buffer&) = delete;
  // Waits until the buffer is free again.
  void wait() const { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
};

// Numbers on the current GPU; zeroed.
template <class T>
class device_numbers {
 public:
  explicit device_numbers(std::uint64_t count) {
    check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data_, 0, count * sizeof(T)), "cudaMemset");
    check(cudaStreamSynchronize(nullptr),
          "cudaMemset");  // streams that wait for no other stream may fill it next
  }
  ~device_numbers() { cudaFree(data_); }
  device_numbers(const device_numbers&) = delete;
  device_numbers& operator=(const device_numbers&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Numbers on the host, pinned.
template <class T>
class pinned_numbers {
 public:
  explicit pinned_numbers(std::uint64_t count) {
    check(cudaHostAlloc(&data_, count * sizeof(T), cudaHostAllocDefault), "cudaHostAlloc");
  }
  ~pinned_numbers() { cudaFreeHost(data_); }
  pinned_numbers(const pinned_numbers&) = delete;
  pinned_numbers& operator=(const pinned_numbers&) = delete;
  T* data() const { return data_; }
  T& operator[](std::uint64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
};

}  // namespace gpufs::rival

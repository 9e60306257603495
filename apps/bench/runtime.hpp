// What limits and peers need of a device beside a mount's memory and launches: a clock, pinned
// memory, the copy engine. One implementation for GPUs, one for the CPU device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "bench/bench.hpp"

namespace gpufs::bench {

// Failures throw gpufs::error. Objects must not outlive the mount that they were made for.
class runtime {
 public:
  // Copies in the order of the calls. Used by one thread, which made it.
  class queue {
   public:
    virtual ~queue() = default;
    // `from` is pinned, and must stay as it is until wait() has returned.
    virtual void copy(char* to, const char* from, std::uint64_t bytes) = 0;
    virtual void wait() = 0;
  };

  virtual ~runtime() = default;
  // How long what `work` launches takes, by the device's own clock. The caller's thread sleeps
  // meanwhile, so that CPU time that is measured is that of others.
  virtual double seconds(const std::function<void()>& work) = 0;
  virtual std::unique_ptr<queue> make_queue() = 0;
  virtual char* pin(std::uint64_t bytes) = 0;
  virtual void unpin(char* memory) noexcept = 0;
  // Makes mapped pages of a file readable for kernels, at the address that it returns.
  virtual const char* register_pages(char* mapped, std::uint64_t bytes) = 0;
  virtual void unregister_pages(char* mapped) noexcept = 0;
};

std::unique_ptr<runtime> make_runtime(const mount& m);
std::unique_ptr<runtime> make_cpu_runtime();
std::unique_ptr<runtime> make_cuda_runtime(const mount& m);  // only where it was built with CUDA

// Pinned memory with an owner.
class pinned_memory {
 public:
  pinned_memory(runtime& r, std::uint64_t bytes) : runtime_(r), data_(r.pin(bytes)) {}
  ~pinned_memory() { runtime_.unpin(data_); }
  pinned_memory(const pinned_memory&) = delete;
  pinned_memory& operator=(const pinned_memory&) = delete;
  char* data() const { return data_; }

 private:
  runtime& runtime_;
  char* data_;
};

}  // namespace gpufs::bench

// What limits and peers need of a device besides a mount's memory and launches: a clock, pinned
// memory, the copy engine. There is one implementation for GPUs and one for the CPU device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/bench.hpp"

namespace gpufs::bench {

// Failures throw gpufs::error. Objects must not outlive the mount that they were made for.
class runtime {
 public:
  // Copies in the order of the calls. Only the thread that made the queue uses it.
  class queue {
   public:
    virtual ~queue() = default;
    // `from` is pinned, and must not change before wait() returns.
    virtual void copy(char* to, const char* from, std::uint64_t bytes) = 0;
    virtual void wait() = 0;
  };

  virtual ~runtime() = default;
  // Returns how long the launches of `work` take, by the device's clock. The calling thread sleeps
  // meanwhile, so the measured CPU time is that of other threads.
  virtual double seconds(const std::function<void()>& work) = 0;
  virtual std::unique_ptr<queue> make_queue() = 0;
  virtual char* pin(std::uint64_t bytes) = 0;
  virtual void unpin(char* memory) noexcept = 0;
  // Makes mapped pages of a file readable for kernels. Returns their address for kernels.
  virtual const char* register_pages(char* mapped, std::uint64_t bytes) = 0;
  virtual void unregister_pages(char* mapped) noexcept = 0;
};

std::unique_ptr<runtime> make_runtime(mount& m);
std::unique_ptr<runtime> make_cpu_runtime();
std::unique_ptr<runtime> make_cuda_runtime(mount& m);  // only in builds with CUDA

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

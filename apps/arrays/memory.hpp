// What arrays need of a device beside a mount's launches: memory that is allocated and freed in the
// order of a stream, copies to and from the host, and events. One implementation for GPUs, one for
// the CPU device, where memory is the host's and all is done at once.
#pragma once

#include <cstdint>
#include <memory>

#include "gpufs/gpufs.hpp"

namespace gpufs::arrays {

// Streams are CUDA's (cudaStream_t); the CPU device has none. Failures throw gpufs::error: ENOMEM, or EIO
// for what the driver says. Thread-safe. May outlive the mount that it was made for.
class device_memory {
 public:
  // A place in a stream.
  class event {
   public:
    virtual ~event() = default;
    virtual void record(void* stream) = 0;
    virtual void wait() = 0;                   // until the device has come there
    virtual void hold_back(void* stream) = 0;  // until then
  };

  virtual ~device_memory() = default;
  // For a call that waits: in no order with what callers do, and with few others of these.
  virtual void* own_stream() = 0;
  // For calls whose callers wait for each by itself; in no order with what others do.
  static constexpr unsigned background_streams = 4;
  virtual void* background_stream() = 0;
  virtual void* allocate(std::uint64_t bytes, void* stream) = 0;
  // `elsewhere`: it was used on other streams too, nobody knows which; then the device is waited
  // for.
  virtual void free(void* memory, void* stream, bool elsewhere) noexcept = 0;
  // Host memory that kernels can write: `pinned_bytes`, aligned for anything.
  static constexpr std::uint64_t pinned_bytes = 8192;
  virtual void* pin() = 0;
  virtual void unpin(void* memory) noexcept = 0;
  virtual std::unique_ptr<event> make_event() = 0;
  // Memory with a copy of the host's, for use in `stream`, in whose order it is freed. The host's
  // may be changed when it returns.
  virtual void* upload(const void* from, std::uint64_t bytes, void* stream) = 0;
  // Throws EINVAL for what is not memory that kernels of the device can reach.
  virtual void check_address(const void* memory) = 0;
  // Waits for what is before it in the stream, and for the copy.
  virtual void copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) = 0;
};

std::shared_ptr<device_memory> make_device_memory(const mount& m);
std::shared_ptr<device_memory> make_cuda_memory(
    const mount& m);  // only where it was built with CUDA

}  // namespace gpufs::arrays

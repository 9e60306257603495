// What arrays need of a device besides a mount's launches: memory that is allocated and freed in
// the order of a stream, copies to and from the host, and events. There is one implementation for
// GPUs and one for the CPU device. On the CPU device, memory is host memory and every call is
// synchronous.
#pragma once

#include <cstdint>
#include <memory>

#include "gpufs/gpufs.hpp"

namespace gpufs::arrays {

// Streams are CUDA's (cudaStream_t); the CPU device has none. Failures throw gpufs::error: ENOMEM,
// or EIO for an error of the driver. Thread-safe. May outlive the mount that it was made for.
class device_memory {
 public:
  // A place in a stream.
  class event {
   public:
    virtual ~event() = default;
    virtual void record(void* stream) = 0;
    virtual void wait() = 0;                   // until the device has reached it
    virtual bool is_done() noexcept = 0;       // whether the device has reached it
    virtual void hold_back(void* stream) = 0;  // makes `stream` wait for it
  };

  virtual ~device_memory() = default;
  // The number of a stream. No later stream of the process has it, unlike the handle.
  virtual std::uint64_t id_of(void* stream) = 0;
  // For calls that wait. Not ordered with the callers' streams; few other calls share the stream.
  virtual void* own_stream() = 0;
  // For calls whose callers wait for each call separately. Not ordered with other streams.
  static constexpr unsigned background_streams = 4;
  virtual void* background_stream() = 0;
  virtual void* allocate(std::uint64_t bytes, void* stream) = 0;
  // `elsewhere`: unknown other streams used the memory too, so this waits for the device.
  virtual void free(void* memory, void* stream, bool elsewhere) noexcept = 0;
  // Host memory that kernels can write: `pinned_bytes`, aligned for any type.
  static constexpr std::uint64_t pinned_bytes = 8192;
  virtual void* pin() = 0;
  virtual void unpin(void* memory) noexcept = 0;
  virtual std::unique_ptr<event> make_event() = 0;
  // Returns memory with a copy of the host's bytes, for use in `stream`, in whose order it is
  // freed. The host's bytes may change after the return.
  virtual void* upload(const void* from, std::uint64_t bytes, void* stream) = 0;
  // Throws EINVAL if kernels of the device cannot access the memory.
  virtual void check_address(const void* memory) = 0;
  // Waits for what precedes it in the stream, and for the copy.
  virtual void copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) = 0;
};

std::shared_ptr<device_memory> make_device_memory(mount& m);
std::shared_ptr<device_memory> make_cuda_memory(mount& m);  // only in builds with CUDA

}  // namespace gpufs::arrays

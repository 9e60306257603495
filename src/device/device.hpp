// What the host side needs of a device: memory, registration, waiting. One implementation for GPUs,
// one for the CPU device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gpufs {

// Thread-safe. Failures throw gpufs::error, except where a result says otherwise.
class device {
 public:
  virtual ~device() = default;
  virtual std::string name() const = 0;
  virtual unsigned multiprocessors() const = 0;
  virtual std::uint64_t free_bytes() const = 0;

  // The arena: zeroed, aligned to 2 MiB on GPUs. At most one at a time.
  virtual char* allocate_arena(std::uint64_t bytes) = 0;
  virtual void free_arena() noexcept = 0;

  // Pinned, zeroed host memory that both sides use.
  struct shared_memory {
    char* host;
    char* device;
  };
  virtual shared_memory allocate_shared(std::uint64_t bytes) = 0;
  virtual void free_shared(const shared_memory& memory, std::uint64_t bytes) noexcept = 0;
  // The same for large buffers, from which bulk_copy() copies: quickly had, also while kernels run.
  virtual shared_memory allocate_buffers(std::uint64_t bytes) = 0;
  virtual void free_buffers(const shared_memory& memory, std::uint64_t bytes) noexcept = 0;

  // Why files cannot be registered for direct loads; empty when they can.
  virtual std::string direct_obstacle() const = 0;
  // Pins mapped file pages for the device. False when the driver refuses; never waits for kernels.
  virtual bool register_range(char* host, std::uint64_t bytes, std::uint64_t& device_address) = 0;
  // Waits for kernels where unregistering_waits(): only while none runs.
  virtual void unregister_range(char* host) noexcept = 0;
  virtual bool unregistering_waits() const = 0;

  // Why there is no bulk_copy(); empty when there is.
  virtual std::string bulk_obstacle() const = 0;
  // Less than this a driver may copy by itself, through the mapping of a file, where a file that
  // was truncated gives SIGBUS.
  virtual std::uint64_t bulk_bytes_min() const = 0;
  // Copies from registered host memory into the arena, both by their addresses on the device. The
  // bytes copied when it is done; -EINPROGRESS when the device will store `word` at `told`, in
  // shared memory, as soon as it is; or -errno. `told` is 8-byte aligned. Waits neither for kernels
  // nor for the copy; but on a GPU another thread of the process may keep the driver busy until a
  // kernel ends. Copies with the same `lane` follow each other.
  virtual std::int64_t bulk_copy(unsigned lane, char* to, std::uint64_t from, std::uint64_t bytes,
                                 char* told, std::uint64_t word) = 0;
  // Whether only one thread at a time may call bulk_copy().
  virtual bool bulk_copies_exclude() const = 0;

  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes) = 0;
  // Does not wait for kernels.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  // As copy_to_host, of words that kernels may be changing: each word is one that was there.
  virtual void snapshot(std::uint64_t* to, const std::uint64_t* from, std::size_t words) = 0;
  virtual void synchronize() = 0;
  // Around each launch on the CPU device; a GPU's driver knows of its launches.
  virtual void begin_launch() noexcept {}
  virtual void end_launch() noexcept {}
  // True when all work ended within the time (base/host_threads.hpp, deadline), or failed (nothing
  // runs any more).
  virtual bool wait_idle(std::uint64_t timeout_ns) noexcept = 0;

  // Makes this device current for the calling thread; returns what to give to restore(). The CPU device
  // has nothing to do.
  virtual int make_current() const = 0;
  virtual void restore(int previous) const noexcept = 0;
};

std::unique_ptr<device> make_cpu_device(unsigned threads);

// Throws gpufs::error: ENODEV when there is no such GPU, ENOTSUP when the library was built without
// CUDA.
std::unique_ptr<device> make_cuda_device(int ordinal);
int cuda_device_count() noexcept;

}  // namespace gpufs

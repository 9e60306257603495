// The device interface for the host side: memory, registration, waiting. GPUs have one
// implementation, the CPU device has the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gpufs {

// Thread-safe. Functions throw gpufs::error on failure, unless their result reports it.
class device {
 public:
  virtual ~device() = default;
  virtual std::string name() const = 0;
  virtual unsigned multiprocessors() const = 0;
  virtual std::uint64_t free_bytes() const = 0;

  // Allocates the arena: zeroed, and aligned to 2 MiB on GPUs. At most one at a time.
  virtual char* allocate_arena(std::uint64_t bytes) = 0;
  virtual void free_arena() noexcept = 0;

  // Pinned, zeroed host memory that both host and device access.
  struct shared_memory {
    char* host;
    char* device;
  };
  virtual shared_memory allocate_shared(std::uint64_t bytes) = 0;
  virtual void free_shared(const shared_memory& memory, std::uint64_t bytes) noexcept = 0;
  // The same for large buffers that are the source of bulk_copy(). Fast, even while kernels run.
  virtual shared_memory allocate_buffers(std::uint64_t bytes) = 0;
  virtual void free_buffers(const shared_memory& memory, std::uint64_t bytes) noexcept = 0;

  // The reason why files cannot be registered for direct loads; empty if they can.
  virtual std::string direct_obstacle() const = 0;
  // Pins mapped file pages for the device. Returns false if the driver refuses. `device_address` is
  // 0 if the driver has registered the pages, but has no address of the device for them. Then they
  // stay registered, and mapped, until unregister_range(). Never waits for kernels.
  virtual bool register_range(char* host, std::uint64_t bytes, std::uint64_t& device_address) = 0;
  // If unregistering_waits(), it waits for kernels, so call it only while none runs.
  virtual void unregister_range(char* host) noexcept = 0;
  virtual bool unregistering_waits() const = 0;

  // The reason why there is no bulk_copy(); empty if there is.
  virtual std::string bulk_obstacle() const = 0;
  // The minimum size of a bulk copy, in bytes. A driver may copy less with the CPU through the
  // file's mapping, where a truncated file gives SIGBUS.
  virtual std::uint64_t bulk_bytes_min() const = 0;
  // Copies from registered host memory into the arena. `to` and `from` are device addresses.
  // Returns the bytes copied if the copy is done, -EINPROGRESS if the device will store `word` at
  // `told` when the copy is done, or -errno. `told` is 8-byte aligned and in shared memory.
  //
  // Does not wait for kernels or for the copy. But on a GPU another thread of the process may keep
  // the driver busy until a kernel ends. Copies with the same `lane` run one after another.
  virtual std::int64_t bulk_copy(unsigned lane, char* to, std::uint64_t from, std::uint64_t bytes,
                                 char* told, std::uint64_t word) = 0;
  // How long bulk copies take at most, while nobody else keeps the driver busy. What takes longer
  // may never end by itself.
  struct bulk_limits {
    std::uint64_t call_ns;  // a call of bulk_copy() or allocate_buffers()
    // Until one of the copies that are under way ends. A copy engine takes a millisecond for the
    // longest copy, and more while kernels use the bus.
    std::uint64_t copy_ns;
  };
  virtual bulk_limits limits_of_bulk() const = 0;
  // True if only one thread at a time may call bulk_copy().
  virtual bool bulk_copies_exclude() const = 0;

  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes) = 0;
  // Copies to host memory. Does not wait for kernels.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  // As copy_to_host(), for words that kernels may be changing: each word copied is a value that the
  // word had.
  virtual void snapshot(std::uint64_t* to, const std::uint64_t* from, std::size_t words) = 0;
  virtual void synchronize() = 0;
  // Called around each launch on the CPU device. A GPU's driver knows its launches.
  virtual void begin_launch() noexcept {}
  virtual void end_launch() noexcept {}
  // Waits up to `timeout_ns` (base/host_threads.hpp, deadline). Returns true if all work has ended,
  // or has failed so that nothing runs any more.
  virtual bool wait_idle(std::uint64_t timeout_ns) noexcept = 0;

  // Makes this device current for the calling thread. Returns the argument for restore(). The CPU
  // device does nothing.
  virtual int make_current() const = 0;
  virtual void restore(int previous) const noexcept = 0;
};

std::unique_ptr<device> make_cpu_device(unsigned threads);

// Throws gpufs::error: ENODEV if there is no such GPU, ENOTSUP if the library was built without
// CUDA.
std::unique_ptr<device> make_cuda_device(int ordinal);
int cuda_device_count() noexcept;

}  // namespace gpufs

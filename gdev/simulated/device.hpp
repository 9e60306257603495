/**
 * A simulated GPU as one process uses it: addresses, allocations, streams.
 *
 * Memory that is not mapped has no access: a kernel or a copy that touches it faults, as on a GPU.
 * Calls return CUDA's errors. Thread-safe.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "simulated/gpu_memory.hpp"
#include "simulated/stream.hpp"

namespace gdev::simulated {

/** A chunk as cuMemCreate() returns it: alive until it is released and unmapped everywhere. */
struct allocation_handle {
  chunk memory;
  const gpu_memory* of = nullptr;
  CUmemAllocationProp properties{};
  unsigned references = 1;
};

/** Work that was in a stream when the event was recorded. */
struct event {
  std::mutex mutex;  // guards all below
  stream* recorded_in = nullptr;
  std::uint64_t ticket = 0;
  std::shared_ptr<std::uint64_t> at_ns;  // when it was reached
  std::shared_ptr<void> captured;        // the capture in which it was recorded
  CUcontext context = nullptr;           // that ends it
};

/** Returns an event. Ends the process if its context has ended, or if it is null: that is a fault
 * of the caller, which a vendor's driver need not see. */
event& live(CUevent handle) noexcept;
/** The context has ended, and all events with it. */
void end_events_of(CUcontext ended);

class device {
 public:
  /** GDEV_SIMULATED_GPU names the memory's file, GDEV_SIMULATED_MEMORY its bytes if it is new. */
  device();
  device(const device&) = delete;
  device& operator=(const device&) = delete;

  [[nodiscard]] const gpu_memory& memory() const noexcept { return memory_; }

  /**
   * Takes memory that has no address: of a context, a module. Its bytes are what a variable of the
   * environment says; without it there are none.
   */
  CUresult take(const char* variable, chunk& taken);
  CUresult take(std::size_t blocks, chunk& taken);

  // --- Addresses and chunks ---

  CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                   CUdeviceptr wanted);
  CUresult free_reservation(CUdeviceptr address, std::size_t bytes);
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                  const CUmemAllocationProp& properties);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle);
  /** Unmaps whole chunks. Where nothing is mapped it does nothing. */
  CUresult unmap(CUdeviceptr address, std::size_t bytes);
  /** Makes one more reference to the chunk that is mapped at an address. */
  CUresult retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address);
  /** Sets the access to whole chunks, up to the first gap between them. */
  CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc& access);
  CUresult get_access(unsigned long long* flags, CUdevice user, CUdeviceptr address);
  CUresult properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);
  CUresult export_handle(int* file, CUmemGenericAllocationHandle handle,
                         CUmemAllocationHandleType type);
  CUresult import_handle(CUmemGenericAllocationHandle* handle, int file);

  // --- Allocations ---

  CUresult allocate(CUdeviceptr* address, std::size_t bytes);
  CUresult free(CUdeviceptr address);
  /** Frees all allocations, as the end of a context does. */
  void free_all();
  /** Finds the allocation or reservation that contains an address. */
  CUresult range_of(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address);
  /** Finds the first block of the allocation that contains an address; of no reservation. */
  CUresult first_block_of(std::uint32_t* block, CUdeviceptr address);
  /** Maps the chunk of another process that begins with a block. */
  CUresult open_chunk(CUdeviceptr* address, std::uint32_t block);
  CUresult close_chunk(CUdeviceptr address);

  // --- Streams ---

  CUresult create_stream(CUstream* made, bool is_blocking);
  CUresult destroy_stream(CUstream ended);
  /** Queues work, after what CUDA's default streams say. */
  void submit(CUstream where, bool is_per_thread, std::function<void()> work);
  void wait(CUstream where, bool is_per_thread);
  [[nodiscard]] bool is_idle(CUstream where, bool is_per_thread);
  void wait_for_all();

  /** For pthread_atfork(). In a child, streams that a program has made have no thread. */
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  [[nodiscard]] std::uint64_t number_of(CUstream where, bool is_per_thread);

  void record(event& which, CUstream where, bool is_per_thread);
  /** Records all work of this process. */
  void record_all(event& which);
  /** Makes a stream wait for an event. */
  void wait_in(CUstream where, bool is_per_thread, event& which);

 private:
  struct range {
    std::size_t bytes = 0;
    bool is_allocation = false;
  };

  /** Returns all streams, with the last work in each. */
  [[nodiscard]] std::vector<std::pair<stream*, std::uint64_t>> all_work();
  struct mapping {
    std::shared_ptr<allocation_handle> of;
    std::map<CUdevice, CUmemAccess_flags> access;

    [[nodiscard]] std::size_t bytes() const { return of->memory.blocks.size() * block_bytes; }
  };
  using mappings = std::map<CUdeviceptr, mapping>;

  CUmemGenericAllocationHandle add_handle(chunk memory, const gpu_memory& of,
                                          const CUmemAllocationProp& properties);
  /** Returns the chunk of a handle, or null. `mutex_` is held. */
  [[nodiscard]] std::shared_ptr<allocation_handle> find_handle(CUmemGenericAllocationHandle handle);
  /** Returns the first mapping that reaches into a range, or what follows it. `mutex_` is held. */
  [[nodiscard]] mappings::iterator first_in(CUdeviceptr address);
  /** Tells whether a range cuts no mapping. `mutex_` is held. */
  [[nodiscard]] bool has_whole_mappings(CUdeviceptr address, std::size_t bytes);
  gpu_memory& host_memory();
  /** Tells whether an address is in what allocate() has made. `mutex_` is held. */
  [[nodiscard]] bool is_in_allocation(CUdeviceptr address);
  stream& find(CUstream where, bool is_per_thread);
  void free_range(std::map<CUdeviceptr, range>::iterator which);

  gpu_memory memory_;
  std::optional<gpu_memory> host_;  // for chunks in the host's memory; made by the first one
  std::mutex mutex_;                // guards all below
  std::map<CUdeviceptr, range> ranges_;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<allocation_handle>> handles_;
  mappings mapped_;  // by their first address
  stream default_stream_;
  stream watcher_;              // of record_all()
  std::set<stream*> blocking_;  // these wait for the default stream, and it for them
  std::set<stream*> non_blocking_;
};

/** Gives an allocation the access that its pool has. */
CUresult give_pool_access(CUmemoryPool from, CUdeviceptr address);

/** The device of this process; made by the first call. */
device& the_device();

/** Returns the calling thread's context, or null. */
[[nodiscard]] CUcontext current_context() noexcept;

/** Tells whether the calling thread has a context that has not ended. */
[[nodiscard]] bool has_context() noexcept;

}  // namespace gdev::simulated

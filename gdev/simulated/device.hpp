/**
 * A simulated GPU as one process uses it: addresses and allocations, and its streams.
 *
 * Memory that is not mapped has no access: a kernel or a copy that touches it faults, as on a GPU.
 * Calls return CUDA's errors. Thread-safe.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "simulated/device_streams.hpp"
#include "simulated/gpu_memory.hpp"

namespace gdev::simulated {

/** Returns the GPU of the calling thread's context; 0 if it has none. */
[[nodiscard]] CUdevice current_gpu() noexcept;

/** A block of a GPU's memory. */
struct place {
  CUdevice gpu = 0;
  std::uint32_t block = 0;
};

/** A chunk as cuMemCreate() returns it: alive until it is released and unmapped everywhere. */
struct allocation_handle {
  chunk memory;
  const gpu_memory* of = nullptr;
  CUmemAllocationProp properties{};
  unsigned references = 1;
};

class device : public device_streams {
 public:
  /**
   * GDEV_SIMULATED_GPU names the memory's file, GDEV_SIMULATED_MEMORY its bytes if it is new.
   * Several files with a colon between them are several GPUs, with addresses and streams in common.
   */
  device();
  device(const device&) = delete;
  device& operator=(const device&) = delete;

  [[nodiscard]] int count() const noexcept { return static_cast<int>(memories_.size()); }
  [[nodiscard]] bool has(CUdevice gpu) const noexcept { return gpu >= 0 && gpu < count(); }
  [[nodiscard]] const gpu_memory& memory(CUdevice gpu) const { return *memories_.at(index(gpu)); }

  /**
   * Takes memory of a GPU that has no address: of a context, a module. Its bytes are what a
   * variable of the environment says; without it there are none.
   */
  CUresult take(CUdevice gpu, const char* variable, chunk& taken);
  CUresult take(CUdevice gpu, std::size_t blocks, chunk& taken);

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

  CUresult allocate(CUdeviceptr* address, std::size_t bytes, CUdevice gpu = current_gpu());
  CUresult free(CUdeviceptr address);
  /** Frees all allocations on a GPU, as the end of a context does. */
  void free_all(CUdevice gpu);
  /** Finds the allocation or reservation that contains an address. */
  CUresult range_of(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address);
  /** Finds the first block of the allocation that contains an address; of no reservation. */
  CUresult first_block_of(place* block, CUdeviceptr address);
  /** Maps the chunk of another process that begins with a block. */
  CUresult open_chunk(CUdeviceptr* address, place block);
  CUresult close_chunk(CUdeviceptr address);

  /** For pthread_atfork(). In a child, streams that a program has made have no thread. */
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct range {
    std::size_t bytes = 0;
    bool is_allocation = false;
  };

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
  void free_range(std::map<CUdeviceptr, range>::iterator which);

  [[nodiscard]] static std::size_t index(CUdevice gpu) noexcept {
    return static_cast<std::size_t>(gpu);
  }

  std::vector<std::unique_ptr<gpu_memory>> memories_;  // of the GPUs
  std::optional<gpu_memory> host_;  // for chunks in the host's memory; made by the first one
  std::mutex mutex_;                // guards all below
  std::map<CUdeviceptr, range> ranges_;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<allocation_handle>> handles_;
  mappings mapped_;  // by their first address
};

/** Allocates on the GPU of a pool, with the access that it gives. */
CUresult allocate_from(CUmemoryPool from, CUdeviceptr* address, std::size_t bytes);

/** The device of this process; made by the first call. */
device& the_device();

/** Returns the calling thread's context, or null. */
[[nodiscard]] CUcontext current_context() noexcept;

/** Tells whether the calling thread has a context that has not ended. */
[[nodiscard]] bool has_context() noexcept;

}  // namespace gdev::simulated

/**
 * Physical memory that a swap replaces, with all that must be as before when it comes back.
 *
 * Allocations (swappable_memory.hpp) consist of chunks. What a program makes with cuMemCreate()
 * (handles.hpp) is one chunk.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "interposer/ledger.hpp"
#include "interposer/swap_file.hpp"

namespace gdev {

/** Where the host keeps a part of a chunk. */
struct host_place {
  std::size_t offset = 0;               // in the chunk
  std::size_t bytes = 0;                // at most host_pool::segment_bytes
  std::byte* copy = nullptr;            // in the host's memory
  std::int64_t file = swap_file::none;  // or there

  [[nodiscard]] bool is_there() const noexcept {
    return copy != nullptr || file != swap_file::none;
  }
};

/** Where a chunk is mapped, and which devices may use it there. A chunk is mapped as a whole. */
struct mapping {
  CUdeviceptr address = 0;
  std::vector<CUmemAccessDesc> access;
};

struct chunk {
  /** Makes nothing yet: only says what the chunk is to be. held: its part of the account. */
  chunk(const CUmemAllocationProp& wanted, std::size_t size, CUcontext used,
        const std::shared_ptr<holding>& held);

  [[nodiscard]] CUdevice device() const noexcept { return properties.location.id; }
  /** Returns an address where the chunk's own device may read and write, or 0. */
  [[nodiscard]] CUdeviceptr address() const noexcept;

  CUmemAllocationProp properties;  // of a device
  std::size_t bytes;
  CUcontext context;                        // in which it is copied
  CUmemGenericAllocationHandle handle = 0;  // 0: not on the GPU
  std::vector<mapping> mappings;
  std::vector<host_place> places;  // all parts in their order
  CUdeviceptr window = 0;          // where gdev has mapped it to copy it; 0: nowhere
  bool is_wired = false;           // stays on the GPU
  bool is_clean = false;           // what the host has of it is what it contains
  // Its part of the account, while it is made in the host's memory; else null.
  std::shared_ptr<holding> on_host;
};

// Calls of the driver. A context of the chunk's device is current, but for those of handles.hpp.

/** Makes the physical memory, and maps it. Returns CUDA's errors; then nothing has been done. */
CUresult make(chunk& made);
/** Unmaps and releases, if there is anything. */
void release(chunk& gone);
/** Makes sure that address() is not 0. */
CUresult open_window(chunk& seen);
void close_window(chunk& seen);

}  // namespace gdev

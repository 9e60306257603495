/**
 * What a handle has allocated and attached.
 *
 * Thread-safe; no lock is held across a call of the driver. Calls return 0 or a negative errno, as
 * the g* functions that they serve. The handle's context is current.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "gdev/gdev.h"

namespace gdev::calls {

class memory {
 public:
  [[nodiscard]] int allocate(CUdeviceptr& address, std::size_t bytes) noexcept;
  /** No work uses it any more; as of all that free. */
  [[nodiscard]] int free(CUdeviceptr address) noexcept;
  [[nodiscard]] int allocate_pinned(void*& buffer, std::size_t bytes) noexcept;
  [[nodiscard]] int free_pinned(void* buffer) noexcept;
  [[nodiscard]] int find_device_address(const void* pointer, CUdeviceptr& address) noexcept;
  [[nodiscard]] int name(CUdeviceptr address, gname& made) noexcept;
  [[nodiscard]] int attach(const gname& name, CUdeviceptr& address) noexcept;
  [[nodiscard]] int detach(CUdeviceptr address) noexcept;
  void free_all() noexcept;

  /** Tells whether a range is what a copy may use, as far as this handle knows. */
  [[nodiscard]] bool may_use(CUdeviceptr address, std::size_t bytes) noexcept;

 private:
  struct range {
    std::size_t bytes = 0;
    std::uint64_t attached = 0;  // so many times; 0: allocated here
  };

  std::mutex mutex_;  // guards all below
  std::map<CUdeviceptr, range> ranges_;
  std::map<std::uintptr_t, std::size_t> pinned_;
};

}  // namespace gdev::calls

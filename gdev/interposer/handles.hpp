/**
 * Handles that programs get for memory which turns can take off the GPU (cuMemCreate).
 *
 * A swap replaces the driver's handle, so the program gets a value of gdev's own: a virtual handle.
 * Behind it stands one chunk of all its bytes. So the driver itself says what may be mapped, bound
 * or exported, and how; gdev only remembers what it has allowed.
 *
 * As with the driver, memory lives while there are references to its handle or mappings.
 *
 * Calls return CUDA's errors. Those that give memory back hold a memory_pass, and wait for no turn;
 * others that call the driver hold a submission. Thread-safe; `mutex_` is held for no call of the
 * driver.
 */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "interposer/chunk.hpp"
#include "interposer/ledger.hpp"

namespace gdev {

class virtual_handles {
 public:
  using value = CUmemGenericAllocationHandle;

  /**
   * Tells whether a value is one of these, alive or not. The driver's are addresses of the process,
   * or small numbers; it must see none of these, because it would use it as an address.
   */
  [[nodiscard]] static bool is_virtual(value handle) noexcept;
  /** Tells whether turns can take such memory off the GPU, for a thread in its current context. */
  [[nodiscard]] static bool are_possible(const CUmemAllocationProp& wanted,
                                         unsigned long long flags);

  /** The caller holds a submission. */
  CUresult create(value* made, std::size_t bytes, const CUmemAllocationProp& wanted,
                  std::shared_ptr<holding> held);
  CUresult release(value handle);
  /** Makes one more reference to what is mapped at an address. Returns 0: nothing of these. */
  [[nodiscard]] value retain(CUdeviceptr address);
  CUresult properties(CUmemAllocationProp* stored, value handle);

  CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset, value handle,
               unsigned long long flags);
  /** Unmaps a range, of which a part at least is mapped here. */
  CUresult unmap(CUdeviceptr address, std::size_t bytes);
  /** Sets the access to a range, of which a part at least is mapped here. */
  CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* wanted,
                      std::size_t count);
  /** Returns the access at an address where something is mapped here, as the driver would. */
  CUresult access(unsigned long long* flags, const CUmemLocation& location, CUdeviceptr address);
  /** Tells whether a part of a range is mapped here. */
  [[nodiscard]] bool has_mapped(CUdeviceptr address, std::size_t bytes = 1);

  CUresult export_to(void* shared, value handle, CUmemAllocationHandleType type,
                     unsigned long long flags);
  /** Keeps the memory on the GPU, and stores the driver's handle, which changes no more. */
  CUresult wire(value handle, CUmemGenericAllocationHandle* real);
  /** Keeps what is mapped in a range on the GPU. */
  void wire_mapped(CUdeviceptr address, std::size_t bytes);

 private:
  struct entry {
    chunk memory;
    std::uint64_t references = 1;  // of the program, and of calls
    std::shared_ptr<holding> held;
  };
  using entries = std::map<value, entry>;

  /** A reference of a call, so that the memory does not end meanwhile. */
  class user;

  struct place {
    std::size_t bytes = 0;
    value handle = 0;
  };
  using places = std::map<CUdeviceptr, place>;

  /** Gives a reference back. Returns the memory if that was the last, and nothing is mapped. */
  [[nodiscard]] entries::node_type give(value handle);
  /** Ends memory that give() has returned. The caller holds a memory_pass, or a submission. */
  static void end(entries::node_type gone);
  /** Returns the first mapping that reaches into a range, or what follows it. With `mutex_`. */
  [[nodiscard]] places::iterator first_in(CUdeviceptr address);
  /** Returns the first mapping after a range. With `mutex_`. */
  [[nodiscard]] places::iterator end_of(CUdeviceptr address, std::size_t bytes);
  [[nodiscard]] places mapped_in(CUdeviceptr address, std::size_t bytes);
  /** Returns the mapping that begins at an address, or null. With `mutex_`. */
  [[nodiscard]] mapping* mapping_at(CUdeviceptr begin);

  std::mutex mutex_;  // guards all below, but for moves (swappable_memory.hpp)
  entries all_;
  places mapped_;
  std::uint64_t next_ = 0;
};

/** The handles of this process. */
[[nodiscard]] virtual_handles& handles() noexcept;

/** Keeps all on the GPU that lies in a range of addresses, whatever has made it. */
void wire_memory(CUdeviceptr address, std::size_t bytes);

/** In a forked child: it has none. */
void forget_handles() noexcept;

}  // namespace gdev

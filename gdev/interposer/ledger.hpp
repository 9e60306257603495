/**
 * What this process has allocated, and how much of its account each allocation holds.
 *
 * Thread-safe. No lock is held across a call of the driver, so what the driver is to free is taken
 * out before the call, and put back if it fails: after the driver has freed, another thread may get
 * the same address or handle.
 */
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "interposer/client.hpp"
#include "protocol/messages.hpp"

namespace gdev {

/** A part of the account, returned when the last owner is gone. */
class holding {
 public:
  holding() = default;
  holding(const holding&) = delete;
  holding& operator=(const holding&) = delete;
  ~holding();

  /**
   * Takes bytes into use, once. Returns CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY: the limit. After
   * `any`, is_on_host() says where they must be; it does not change while a submission is held.
   */
  [[nodiscard]] CUresult take(std::uint64_t bytes, memory_place where) noexcept;
  [[nodiscard]] bool is_on_host() const noexcept { return gdev::is_on_host(part_); }
  /** They stay in the host's memory, if they are there. */
  void keep_on_host() noexcept { gdev::keep_on_host(part_); }

 private:
  std::uint64_t bytes_ = 0;
  memory_place where_ = memory_place::here;
  host_part part_;
};

/** One of the things that the driver frees with a context: allocations, arrays. */
struct entry {
  std::shared_ptr<holding> held;
  CUcontext of = nullptr;
};

/** Entries by address or handle. */
class ledger {
 public:
  void add(std::uint64_t key, entry one);
  /** Takes an entry out; an empty one if there is none. */
  [[nodiscard]] entry take(std::uint64_t key);
  /** Takes out all that belongs to a context. */
  [[nodiscard]] std::map<std::uint64_t, entry> take_all(CUcontext context);
  void put_back(std::map<std::uint64_t, entry> taken);
  /** Lets all of a context belong to another one. */
  void hand_over(CUcontext from, CUcontext to);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, entry> entries_;
};

/** Chunks (cuMemCreate): alive until all handles are released and all mappings are gone. */
class chunk_ledger {
 public:
  /** The mappings of a range of addresses. */
  struct mapping {
    std::uint64_t bytes = 0;
    std::shared_ptr<holding> held;
  };
  using mappings = std::map<CUdeviceptr, mapping>;

  /** Adds a reference to a chunk by its handle: a new one, or one more. */
  void add(std::uint64_t handle, std::shared_ptr<holding> held);
  /** Takes a reference out. Returns what it held, to be kept until the driver has released it. */
  [[nodiscard]] std::shared_ptr<holding> release(std::uint64_t handle);
  /** Adds a reference to the chunk that is mapped at an address (cuMemRetainAllocationHandle). */
  void retain(std::uint64_t handle, CUdeviceptr address);
  void map(CUdeviceptr address, std::uint64_t bytes, std::uint64_t handle);
  /** Takes mappings out, by where they begin. They are kept until the driver has unmapped them. */
  [[nodiscard]] mappings unmap(CUdeviceptr address, std::uint64_t bytes);
  void put_back(mappings taken);

 private:
  struct reference {
    std::shared_ptr<holding> held;
    unsigned count = 0;
  };

  std::mutex mutex_;
  std::map<std::uint64_t, reference> handles_;
  mappings mapped_;
};

// The ledgers of this process. Never ended: threads may call the driver while the process ends.
[[nodiscard]] ledger& allocations() noexcept;
[[nodiscard]] ledger& arrays() noexcept;
[[nodiscard]] chunk_ledger& chunks() noexcept;

/** In a forked child: what the parent has allocated is not here, whoever held a lock meanwhile. */
void forget_ledgers() noexcept;

}  // namespace gdev

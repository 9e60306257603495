/**
 * What this process has allocated, and how much of its account each allocation holds.
 *
 * Thread-safe. No lock is held across a call of the driver, so an entry is taken out before the
 * driver frees, and put back if it does not: after the driver has freed, another thread may get the
 * same address.
 */
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace gdev {

/** A part of the account, returned when the last owner is gone. */
class holding {
 public:
  holding() = default;
  holding(const holding&) = delete;
  holding& operator=(const holding&) = delete;
  ~holding();

  /** Takes bytes into use. Returns CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY: the limit. */
  [[nodiscard]] CUresult take(std::uint64_t bytes) noexcept;

 private:
  std::uint64_t bytes_ = 0;
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
  /** Forgets what belonged to a context. */
  void drop(CUcontext context);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, entry> entries_;
};

/** Chunks (cuMemCreate): alive until all handles are released and all mappings are gone. */
class chunk_ledger {
 public:
  void create(std::uint64_t handle, std::shared_ptr<holding> held);
  /** Another reference to a handle's chunk (cuMemRetainAllocationHandle). */
  void retain(std::uint64_t handle);
  /** Takes a reference out. Returns the chunk's part of the account, for as long as it is freed. */
  [[nodiscard]] std::shared_ptr<holding> release(std::uint64_t handle);
  void map(CUdeviceptr address, std::uint64_t handle);
  void unmap(CUdeviceptr address, std::uint64_t bytes);

 private:
  struct reference {
    std::shared_ptr<holding> held;
    unsigned count = 1;
  };

  std::mutex mutex_;
  std::map<std::uint64_t, reference> handles_;
  std::map<CUdeviceptr, std::shared_ptr<holding>> mapped_;
};

}  // namespace gdev

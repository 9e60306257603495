/**
 * Stream-ordered allocations (cuMemAllocAsync) in memory that turns can take off the GPU.
 *
 * The driver's pools cannot be moved, so gdev has a pool of its own beside each of the driver's
 * that it can serve: of the GPU of the turns, without handle types, not used by other devices. Its
 * memory are ranges of reserved addresses with chunks behind them (chunk.hpp), of which
 * allocations are parts (pool_blocks.hpp). All else stays the driver's: null means that.
 *
 * A free records an event. An allocation gets, in this order: what is free in its stream, or whose
 * event has happened; new memory; what waits for an event, for which its stream then waits too.
 * What is beyond the release threshold is given back at the next synchronization.
 *
 * What is handed out again may be off the GPU: the addresses stay, and what uses them passes the
 * gate. So only calls that make memory hold a submission, and those that give some back hold a
 * memory_pass. Thread-safe; `mutex_` is held for no call of the driver.
 */
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "interposer/chunk.hpp"
#include "interposer/ledger.hpp"
#include "interposer/pool_blocks.hpp"

namespace gdev {

/** What a pool has, in bytes. */
struct pool_amounts {
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
};

class stream_pools {
 public:
  using answer = std::optional<CUresult>;  // null: the driver must be called

  /** One of the driver's pools, and gdev's memory for it. */
  struct pool {
    CUmemoryPool handle = nullptr;
    CUdevice device = 0;
    std::array<pool_blocks, 2> blocks;  // for small allocations, and for others
    pool_amounts amounts;
    std::uint64_t threshold = 0;
    std::atomic<bool> is_opportunistic = true;   // CUDA's names of these ways to reuse memory:
    std::atomic<bool> adds_dependencies = true;  // opportunistic, internal dependencies
    bool is_shared = false;                      // other devices use it

    [[nodiscard]] bool has_points() const {
      return std::any_of(blocks.begin(), blocks.end(),
                         [](const pool_blocks& one) { return one.has_after(0); });
    }
  };

  // --- Allocations; the streams are not being captured ---

  /** pool: null for the current one of the stream's device. The caller holds no submission. */
  answer allocate(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream);
  answer free_in(CUdeviceptr address, CUstream stream);
  /** Frees at once: waits for the work before it. While graphs are captured, the memory waits for
   * the next call without captures that gives some back. */
  answer free_now(CUdeviceptr address);
  /** Finds the allocation that contains an address. Returns false if it is none of these. */
  [[nodiscard]] bool find(CUdeviceptr address, CUdeviceptr* begin = nullptr,
                          std::size_t* bytes = nullptr, CUmemoryPool* of = nullptr);

  /** Tells whether some of a pool's memory is in a range of addresses, in use or not. */
  [[nodiscard]] bool reaches_into(CUdeviceptr address, std::size_t bytes);

  // --- Giving back ---

  /** After a synchronization: gives back what is beyond the thresholds. */
  void release_unused() noexcept {
    if (may_release_.load(std::memory_order_relaxed)) {
      release_now();
    }
  }
  /**
   * Gives back what is cached, if an allocation of so many bytes does not fit otherwise.
   *
   * Waits up to a second for work that uses it. The caller holds no submission.
   */
  void make_room(std::uint64_t bytes);
  /** Gives back what is free of a pool, but for at least so many bytes. */
  void trim(CUmemoryPool handle, std::uint64_t kept);

  // --- Pools ---

  /** Notes a pool, before the program changes how it is used, if it is a default one. */
  void know(CUmemoryPool handle);
  /** Notes a pool that the program has made, in the place of an old one that had the handle. */
  void add_new(CUmemoryPool handle, const CUmemPoolProps& properties);
  /** Returns a pool, or null: it is not here. */
  [[nodiscard]] std::shared_ptr<pool> get(CUmemoryPool handle);
  /** The driver has destroyed the pool. Its memory lives until it is freed. */
  void destroy(const std::shared_ptr<pool>& gone);
  [[nodiscard]] pool_amounts amounts(CUmemoryPool handle);
  /** Notes an attribute that the driver has accepted. */
  void set(CUmemoryPool handle, CUmemPool_attribute which, const void* value);
  /** Lets other devices use the memory, which stays on the GPU from then on. */
  CUresult share(CUmemoryPool handle, const CUmemAccessDesc* access, std::size_t count);
  /** Keeps all on the GPU that lies in a range of addresses. The caller holds a submission. */
  void wire(CUdeviceptr address, std::size_t bytes);
  /** A context ends. The caller holds a submission, and has called swappable().free_all(). */
  void end_context(CUcontext ended);

 private:
  struct range {
    std::shared_ptr<pool> of;
    std::size_t kind = 0;
    std::size_t bytes = 0;
    std::list<chunk> chunks;
    std::shared_ptr<holding> held;
    unsigned users = 0;  // calls that need it to stay
  };
  using ranges = std::map<CUdeviceptr, std::shared_ptr<range>>;

  /** What a number of bytes to keep means. CUDA promises these of thresholds, and of trims. */
  enum class bound : std::uint8_t { at_most, at_least };

  /** A free that has begun. */
  struct freeing {
    std::shared_ptr<range> from;
    std::size_t bytes = 0;     // 0: no allocation begins there
    std::uint64_t number = 0;  // of its point
  };

  /** Keeps a context from ending while a call of the driver uses one of its events. */
  class event_use {
   public:
    event_use(stream_pools& of, std::shared_ptr<event_store> store);
    event_use(const event_use&) = delete;
    event_use& operator=(const event_use&) = delete;
    ~event_use();
    /** Tells whether the events may be used. If not, their context ends, and its work is done. */
    [[nodiscard]] explicit operator bool() const noexcept { return is_there_; }

   private:
    stream_pools& of_;
    const std::shared_ptr<event_store> store_;
    bool is_there_ = false;
  };

  /** Memory that was freed at once while graphs were captured. */
  struct deferred {
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    std::shared_ptr<range> from;
  };

  struct place {
    std::uint64_t stream = 0;
    CUcontext context = nullptr;
    CUdevice device = 0;
  };

  /** Tells whether the limit and the GPU have room, as far as is known. */
  [[nodiscard]] static bool would_fit(std::uint64_t bytes);
  [[nodiscard]] bool find_place(CUstream stream, place& found);
  [[nodiscard]] std::shared_ptr<pool> find_pool(CUmemoryPool handle, const place& where);
  /** Notes a pool, unless it is noted already, or gdev cannot serve it. */
  void add(CUmemoryPool handle, const CUmemPoolProps& properties);
  /** Notes a pool, if it is a device's default one. */
  void add_default(CUmemoryPool handle, CUdevice device);
  /** Takes what is free for a stream. */
  [[nodiscard]] bool take(pool& from, std::size_t bytes, std::uint64_t stream,
                          CUdeviceptr* address);
  /** Takes what waits for an event, and makes the stream wait for it too. */
  [[nodiscard]] bool take_after(pool& from, std::size_t bytes, CUstream stream,
                                CUdeviceptr* address);
  [[nodiscard]] bool has_after(pool& from, std::size_t bytes);
  [[nodiscard]] bool is_shared(const pool& one);
  CUresult grow(const std::shared_ptr<pool>& to, std::size_t bytes, const place& where,
                CUdeviceptr* address);
  /** CUDA_ERROR_NOT_PERMITTED: other devices use the pool meanwhile, so it is the driver's now. */
  CUresult make_range(const std::shared_ptr<pool>& to, std::size_t bytes, const place& where,
                      const std::shared_ptr<holding>& held, CUdeviceptr* address);
  static void end_range(CUdeviceptr begin, range& gone);
  /** Null: it is not in a pool. */
  [[nodiscard]] std::optional<freeing> begin_free(CUdeviceptr address);
  /** Gets an event that is recorded in a stream. Null: the driver's error is stored. */
  [[nodiscard]] pool_blocks::point record(CUstream stream, const place& where, std::uint64_t number,
                                          CUresult& result);
  /** Asks the driver which points are reached. */
  void look_at_points(pool& of);
  void look_at_points(pool_blocks& of, std::uint64_t stream);
  /** Drops the events of a context that ends, when no call uses them any more. */
  void end_events(CUcontext ended);
  /** Returns whether a point is reached; then all up to it are noted as reached. Null: no. */
  bool look_at(pool_blocks& of, pool_blocks::point one);
  /**
   * Gives back what is free of a pool, but for at most or at least so many bytes, as its ranges
   * allow. Returns whether more is pending.
   */
  bool release(pool& of, std::uint64_t kept, bound kept_is);
  void release_now();
  /** Ends frees that have waited for the end of captures. */
  void end_deferred();
  [[nodiscard]] std::vector<std::shared_ptr<pool>> all_pools();

  // `mutex_` is held for these.
  [[nodiscard]] ranges::iterator range_at(CUdeviceptr address);
  /**
   * Takes a range of a pool that has so many bytes too much. If it must not keep more: the smallest
   * range that has them, or else the largest. If it must not keep less: one that is no larger.
   */
  [[nodiscard]] static std::optional<std::pair<pool_blocks*, CUdeviceptr>> take_range(
      pool& of, std::size_t excess, bound kept_is);
  void note_used(pool& of, std::size_t bytes);
  void note_unused(pool& of, std::size_t bytes);
  [[nodiscard]] std::shared_ptr<pool> pool_of(CUmemoryPool handle) const;
  /** Takes a pool that is destroyed out of the table, if it is there still. */
  void retire(const std::shared_ptr<pool>& gone);
  [[nodiscard]] std::vector<std::shared_ptr<range>> hold(const pool* of, CUdeviceptr address,
                                                         std::size_t bytes);
  static void keep_on_gpu(const std::vector<std::shared_ptr<range>>& held);
  void let_go(const std::vector<std::shared_ptr<range>>& held);

  std::mutex mutex_;  // guards all below
  std::map<CUmemoryPool, std::shared_ptr<pool>> pools_;
  std::vector<std::shared_ptr<pool>> destroyed_;  // that have memory still
  ranges ranges_;
  std::vector<deferred> deferred_;
  std::map<std::uint64_t, place> places_;  // of streams, by their numbers
  std::map<CUcontext, std::shared_ptr<event_store>> events_;
  std::condition_variable unused_;               // events of a context that ends
  std::uint64_t last_number_ = 0;                // of a point
  std::atomic<std::uint64_t> cached_ = 0;        // bytes that are not in use
  std::atomic<std::uint64_t> ranges_count_ = 0;  // of ranges_
  std::atomic<bool> may_release_ = false;
};

/** The pools of this process. */
[[nodiscard]] stream_pools& pools() noexcept;

/** In a forked child: it has none. */
void forget_pools() noexcept;

}  // namespace gdev

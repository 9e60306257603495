// Permits to write a file. The kernel lets one thread write a file at a time, and other threads
// that try burn their time waiting. But bytes that a GPU wrote came over the bus and are in no
// processor's cache, and fetching them takes a third of a write. So two threads may work on a file:
// while one writes, the other loads the bytes of its next write into its cache
// (request_server::prefetch). More threads gain nothing (docs/decisions/service.md).
//
// The exception is a backend whose writes run in parallel (backend_file::writes_together). Then six
// threads may write, and none loads bytes beforehand. In both cases one thread is left for other
// files, because a write may take as long as its disk takes.
//
// Service threads call take(); a thread that gets no permit skips the request. Nothing waits, and
// there are no locks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "gpufs/base/platform.cuh"

namespace gpufs {

// The permits of one file. Thread-safe.
class write_permits {
 public:
  // Two of them serve when only one thread can write at a time.
  static constexpr std::size_t count = 6;

  // Stores whether the file's last write ran in parallel with others. Relaxed: a hint. Stored only
  // when it changes, because all writers share its cache line.
  void write_together(bool together) {
    if (together_.load(std::memory_order_relaxed) != together)
      together_.store(together, std::memory_order_relaxed);
  }

 private:
  friend class write_permit;
  struct alignas(64) permit {
    std::atomic<bool> taken{false};
    std::atomic<unsigned> by{0};  // the thread that had it last; until_ns: until when
    std::atomic<std::uint64_t> until_ns{0};
  };
  std::array<permit, count> permits_;
  std::atomic<bool> together_{false};
};

// One thread's permit, which it holds while this object lives. The last holder of a permit is
// preferred for a while: its caches have what a write needs, and the other threads can sleep.
class write_permit {
 public:
  write_permit() = default;
  ~write_permit() {
    if (of_ == nullptr) return;
    permit_->until_ns.store(platform::now_ns(), std::memory_order_relaxed);
    permit_->taken.store(false, std::memory_order_release);
  }
  write_permit(const write_permit&) = delete;
  write_permit& operator=(const write_permit&) = delete;

  // Takes a permit for thread `who` of `threads`. False when other threads hold all permits, or
  // held them less than preferred_ns ago. Does not wait.
  [[nodiscard]] bool take(const std::shared_ptr<write_permits>& of, unsigned who,
                          unsigned threads) {
    const std::size_t useful =
        of->together_.load(std::memory_order_relaxed) ? write_permits::count : 2;
    const std::size_t permits = std::min<std::size_t>(useful, threads - 1);
    for (const bool own : {true, false}) {
      for (write_permits::permit& permit : std::span(of->permits_).first(permits)) {
        // Relaxed: a guess that saves the exchange, which would take the cache line from the
        // writer.
        if (permit.taken.load(std::memory_order_relaxed)) continue;
        if ((permit.by.load(std::memory_order_relaxed) == who) != own) continue;
        if (!own &&
            platform::now_ns() - permit.until_ns.load(std::memory_order_relaxed) < preferred_ns)
          continue;
        // Acquire: pairs with the release in the destructor. Without it this thread might not see
        // what the last holder wrote.
        if (permit.taken.exchange(true, std::memory_order_acquire)) continue;
        permit.by.store(who, std::memory_order_relaxed);
        of_ = of;
        permit_ = &permit;
        return true;
      }
    }
    return false;
  }

  // Whether another thread writes the file, and prevents this one from writing in parallel. A
  // guess.
  bool is_behind_another() const {
    if (of_ == nullptr || of_->together_.load(std::memory_order_relaxed)) return false;
    for (const write_permits::permit& permit : of_->permits_) {
      if (&permit != permit_ && permit.taken.load(std::memory_order_relaxed)) return true;
    }
    return false;
  }

 private:
  static constexpr std::uint64_t preferred_ns = 200'000;
  std::shared_ptr<write_permits> of_;
  write_permits::permit* permit_ = nullptr;
};

}  // namespace gpufs

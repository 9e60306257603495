// Turns to write a file. The kernel lets one thread write a file at a time, and others that try
// burn their time waiting for it. But what a kernel of the GPU wrote has come over the bus and is
// in no processor's own cache, and fetching it takes a third of a write. So two threads may be at
// it: while one writes, the other brings the bytes of its next write near
// (request_server::bring_near). More gain nothing (measured: docs/performance.md), unless the
// backend says that they write together (backend_file::writes_together): then six may, and none
// brings anything near. One thread is always left for other files: a write may take as long as its
// disk likes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "gpufs/base/platform.cuh"

namespace gpufs {

// Of one file. Thread-safe.
class write_permits {
 public:
  static constexpr std::size_t count =
      6;  // of which two are for those who write one after the other

  // What the file's backend says of its last writes. Relaxed: a hint. Stored only when it changes,
  // as all writers share its line.
  void write_together(bool together) {
    if (together_.load(std::memory_order_relaxed) != together)
      together_.store(together, std::memory_order_relaxed);
  }

 private:
  friend class write_turn;
  struct alignas(64) permit {
    std::atomic<bool> taken{false};
    std::atomic<unsigned> by{0};  // who had it last, and until when
    std::atomic<std::uint64_t> until_ns{0};
  };
  std::array<permit, count> permits_;
  std::atomic<bool> together_{false};
};

// One thread's turn, which lasts as long as this object. Who had a permit last is preferred for a
// while, as it has in its caches what a write needs, and the others can sleep.
class write_turn {
 public:
  write_turn() = default;
  ~write_turn() {
    if (of_ == nullptr) return;
    permit_->until_ns.store(platform::now_ns(), std::memory_order_relaxed);
    permit_->taken.store(false, std::memory_order_release);
  }
  write_turn(const write_turn&) = delete;
  write_turn& operator=(const write_turn&) = delete;

  // By thread `who` of `threads`. False when other threads have all permits, or had them a moment
  // ago.
  [[nodiscard]] bool take(const std::shared_ptr<write_permits>& of, unsigned who,
                          unsigned threads) {
    const std::size_t useful =
        of->together_.load(std::memory_order_relaxed) ? write_permits::count : 2;
    const std::size_t permits = std::min<std::size_t>(useful, threads - 1);
    for (const bool own : {true, false}) {
      for (write_permits::permit& permit : std::span(of->permits_).first(permits)) {
        // Relaxed: a guess that saves the exchange, for whose line the writer would have to wait.
        if (permit.taken.load(std::memory_order_relaxed)) continue;
        if ((permit.by.load(std::memory_order_relaxed) == who) != own) continue;
        if (!own &&
            platform::now_ns() - permit.until_ns.load(std::memory_order_relaxed) < preferred_ns)
          continue;
        // Acquire: pairs with the release above.
        if (permit.taken.exchange(true, std::memory_order_acquire)) continue;
        permit.by.store(who, std::memory_order_relaxed);
        of_ = of;
        permit_ = &permit;
        return true;
      }
    }
    return false;
  }

  // Whether another thread is at the file, and lets none write beside it. A guess.
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

// The copiers' calls of the CUDA driver: one at a time, and watched.
//
// The driver lets one thread in at a time, and a thread may be in it until a kernel ends: one that
// copies to pageable memory after the kernel, frees memory, or loads another kernel. If that kernel
// waits for a bulk request whose copier waits to get into the driver, none of the three goes on by
// itself. So the supervisor looks at the calls: one that takes too long is reported, and until it
// returns all other requests that need the driver are refused. Their groups load page by page then,
// which needs no driver.
//
// The same may happen after the driver has taken a copy: the first launch of a kernel that CUDA has
// yet to load keeps the copy engine from all copies until the kernels that run have ended. So
// copies that the device is to answer are watched, too: while some wait and none ends for a while,
// all are reported, and nobody is let in.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpufs/base/platform.cuh"

namespace gpufs {

// Thread-safe.
class driver_gate {
 public:
  // A call that takes longer may never return by itself. The driver's calls take microseconds, but
  // for a few that allocate buffers and take milliseconds.
  static constexpr std::uint64_t call_ns_max = 50'000'000;

  // The request that a call is for.
  struct request_name {
    std::uint32_t slot, sequence;
  };

  // The engine takes a millisecond for the longest copy, some more while kernels use the bus. It is
  // stuck when it ends none of those that wait for so long.
  static constexpr std::uint64_t copy_ns_max = 100'000'000;

  // `slots`: of the channel. `exclusive`: one thread at a time, as the others would wait in the
  // driver, spinning.
  driver_gate(unsigned threads, std::uint32_t slots, bool exclusive)
      : calls_(threads), copies_(slots), exclusive_(exclusive) {}

  // Lets thread `thread` in, while it lives. Waits for others at most call_ns_max; converts to
  // false when they do not come out, or one of them is reported to take too long.
  class pass {
   public:
    pass(driver_gate& gate, unsigned thread, const request_name& name)
        : gate_(gate), thread_(thread), is_in_(gate.enter(thread, name)) {}
    ~pass() {
      if (is_in_) gate_.leave(thread_);
    }
    pass(const pass&) = delete;
    pass& operator=(const pass&) = delete;
    explicit operator bool() const { return is_in_; }

   private:
    driver_gate& gate_;
    const unsigned thread_;
    const bool is_in_;
  };

  // The answer of a request depends on the device alone from now on. Called before the caller of
  // the request can see the answer and post another one in the slot.
  void expect_answer(const request_name& name) {
    // Relaxed: the supervisor only compares it with the answer.
    std::atomic<std::uint64_t>& copy = copies_[name.slot];
    if (copy.load(std::memory_order_relaxed) != 0) ended_.store(true, std::memory_order_relaxed);
    copy.store(std::uint64_t{1} << 32 | name.sequence, std::memory_order_relaxed);
    waits_.store(true, std::memory_order_relaxed);
  }

  // Adds requests whose calls or copies take too long; a call only once. From then on until the
  // call returns, or a copy ends, nobody is let in. Returns whether there is such a call or copy,
  // found now or before. `is_answered(name)`: whether a request has been answered. By one thread,
  // again and again; calls nothing that may wait.
  template <class IsAnswered>
  bool find_stalled(std::vector<request_name>& found, const IsAnswered& is_answered) {
    if (waits_.load(std::memory_order_relaxed)) watch_copies(found, is_answered);
    return find_stalled_calls(found);
  }
  // Whether nobody is let in.
  bool is_closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  struct call {
    bool inside = false, stalled = false;
    std::uint64_t since_ns = 0;
    request_name name{};
  };
  bool enter(unsigned thread, const request_name& name);
  void leave(unsigned thread);
  bool find_stalled_calls(std::vector<request_name>& found);
  void set_engine_stuck(bool stuck);
  bool refuses() const { return stalled_ != 0 || engine_stuck_; }

  template <class IsAnswered>
  void watch_copies(std::vector<request_name>& found, const IsAnswered& is_answered) {
    bool waits = false, ended = ended_.exchange(false, std::memory_order_relaxed);
    // First: a copy that comes while the slots are looked at sets it again.
    waits_.store(false, std::memory_order_relaxed);
    for (std::uint32_t slot = 0; slot < copies_.size(); ++slot) {
      std::uint64_t copy = copies_[slot].load(std::memory_order_relaxed);
      if (copy == 0) continue;
      if (!is_answered({slot, static_cast<std::uint32_t>(copy)})) waits = true;
      else if (copies_[slot].compare_exchange_strong(copy, 0, std::memory_order_relaxed))
        ended = true;
    }
    const std::uint64_t now = platform::now_ns();
    if (ended || !waits || last_end_ns_ == 0) last_end_ns_ = now;
    if (!waits) {
      last_end_ns_ = 0;
      return set_engine_stuck(false);
    }
    waits_.store(true, std::memory_order_relaxed);
    const bool stuck = platform::duration_ns(last_end_ns_, now) > copy_ns_max;
    set_engine_stuck(stuck);
    if (!stuck) return;
    for (std::uint32_t slot = 0; slot < copies_.size(); ++slot) {
      const std::uint64_t copy = copies_[slot].load(std::memory_order_relaxed);
      if (copy != 0) found.push_back({slot, static_cast<std::uint32_t>(copy)});
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<call> calls_;  // of each thread
  // Of each slot: the number of the request that the device is to answer, and a bit above it; 0:
  // none.
  std::vector<std::atomic<std::uint64_t>> copies_;
  std::atomic<bool> waits_{false};  // there may be such a request
  std::atomic<bool> ended_{false};  // one has been answered since the supervisor looked
  std::uint64_t last_end_ns_ =
      0;  // the supervisor's: when an answer was seen last, while others wait
  std::atomic<bool> closed_{false};
  const bool exclusive_;
  bool engine_stuck_ = false;
  unsigned inside_ = 0, stalled_ = 0;  // of the calls
};

}  // namespace gpufs

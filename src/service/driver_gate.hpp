// The copiers' calls of the CUDA driver: usually one at a time, and watched.
//
// Calls. The driver admits one thread at a time, and a call may last until a kernel ends: one that
// copies to pageable memory after the kernel, frees memory, or loads another kernel. Such a call
// may hold the driver while its kernel waits for a bulk request, whose copier waits for the driver.
// Then none of the three continues by itself. So the supervisor watches the calls. It reports a
// call that takes too long, and until that call returns the gate refuses all other requests that
// need the driver. Their groups then load page by page, which needs no driver.
//
// Copies. The same may happen after the driver has accepted a copy. The first launch of a kernel
// that CUDA must still load keeps all copies from the copy engine until the running kernels have
// ended. So the supervisor also watches copies that the device answers. While some wait and none
// ends for a while, it reports all of them, and the gate admits no thread.
//
// Threads. Copiers use `pass` and call expect_answer(). The supervisor alone calls find_stalled().
// Any thread may call is_closed(). `mutex_` guards `calls_`, `inside_`, `stalled_` and
// `engine_stuck_`. Only the supervisor uses `last_end_ns_`. The rest is atomic.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "device/device.hpp"
#include "gpufs/base/platform.cuh"

namespace gpufs {

// Thread-safe as stated above.
class driver_gate {
 public:
  struct rules {
    device::bulk_limits limits;
    // Admit one thread at a time, because others would spin in the driver.
    bool exclusive;
  };

  // Names the request that a call serves.
  struct request_name {
    std::uint32_t slot, sequence;
  };

  // `threads`: the copiers. `slots`: the channel's.
  driver_gate(unsigned threads, std::uint32_t slots, const rules& r)
      : rules_(r), calls_(threads), copies_(slots) {}

  // Admits thread `thread` while this object lives. The constructor waits for other threads, for at
  // most `limits.call_ns`. Converts to false when they do not leave the driver in time, or the gate
  // refuses.
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

  // Says that only the device can answer the request from now on. Called before the caller of the
  // request can see the answer and post another request in the slot.
  void expect_answer(const request_name& name) {
    // Relaxed: the supervisor only compares the value with the slot's reply.
    std::atomic<std::uint64_t>& copy = copies_[name.slot];
    if (copy.load(std::memory_order_relaxed) != 0) ended_.store(true, std::memory_order_relaxed);
    copy.store(std::uint64_t{1} << 32 | name.sequence, std::memory_order_relaxed);
    waits_.store(true, std::memory_order_relaxed);
  }

  // Appends to `found` the requests whose calls or copies take too long; each call only once. From
  // then on the gate admits no thread, until the call returns or a copy ends. Returns whether there
  // is such a call or copy, found now or before. `is_answered(name)`: whether a request was
  // answered. Called repeatedly by one thread, the supervisor. Calls nothing that may wait.
  template <class IsAnswered>
  bool find_stalled(std::vector<request_name>& found, const IsAnswered& is_answered) {
    if (waits_.load(std::memory_order_relaxed)) watch_copies(found, is_answered);
    return find_stalled_calls(found);
  }
  // Whether the gate admits no thread. Relaxed: a hint.
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
    // Cleared first: a copy that starts during the scan sets it again.
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
    const bool stuck = platform::duration_ns(last_end_ns_, now) > rules_.limits.copy_ns;
    set_engine_stuck(stuck);
    if (!stuck) return;
    for (std::uint32_t slot = 0; slot < copies_.size(); ++slot) {
      const std::uint64_t copy = copies_[slot].load(std::memory_order_relaxed);
      if (copy != 0) found.push_back({slot, static_cast<std::uint32_t>(copy)});
    }
  }

  const rules rules_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<call> calls_;  // indexed by thread
  // Indexed by slot: the sequence of the request that the device answers, with bit 32 set. 0: none.
  std::vector<std::atomic<std::uint64_t>> copies_;
  std::atomic<bool> waits_{false};  // a slot of copies_ may be set
  std::atomic<bool> ended_{false};  // a copy was answered since the last scan
  // When an answer was last seen while others wait; 0: no copy waits.
  std::uint64_t last_end_ns_ = 0;
  std::atomic<bool> closed_{false};
  bool engine_stuck_ = false;
  unsigned inside_ = 0, stalled_ = 0;  // numbers of calls
};

}  // namespace gpufs

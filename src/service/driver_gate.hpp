// The copiers' calls of the CUDA driver: one at a time, and watched.
//
// The driver lets one thread in at a time, and a thread may be in it until a kernel ends: one that copies to pageable
// memory after the kernel, frees memory, or loads another kernel. If that kernel waits for a bulk request whose copier
// waits to get into the driver, none of the three goes on by itself. So the supervisor looks at the calls: one that
// takes too long is reported, and until it returns all other requests that need the driver are refused. Their groups
// load page by page then, which needs no driver.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace gpufs {

// Thread-safe.
class driver_gate {
 public:
  // A call that takes longer may never return by itself. The driver's calls take microseconds, but for a few that
  // allocate buffers and take milliseconds.
  static constexpr std::uint64_t call_ns_max = 50'000'000;

  // The request that a call is for.
  struct request_name {
    std::uint32_t slot, sequence;
  };

  // `exclusive`: one thread at a time, as the others would wait in the driver, spinning.
  driver_gate(unsigned threads, bool exclusive) : calls_(threads), exclusive_(exclusive) {}

  // Lets thread `thread` in, while it lives. Waits for others at most call_ns_max; converts to false when they do not
  // come out, or one of them is reported to take too long.
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

  // Adds requests whose calls take too long, and were not found before. From then on until the calls return nobody is
  // let in. Returns whether there is such a call, found now or before.
  bool find_stalled(std::vector<request_name>& found);

 private:
  struct call {
    bool inside = false, stalled = false;
    std::uint64_t since_ns = 0;
    request_name name{};
  };
  bool enter(unsigned thread, const request_name& name);
  void leave(unsigned thread);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<call> calls_;  // of each thread
  const bool exclusive_;
  unsigned inside_ = 0, stalled_ = 0;  // of the calls
};

}  // namespace gpufs

// Host threads that work at the same time.
#pragma once

#include <barrier>
#include <functional>
#include <optional>

#include "engine/bench.hpp"
#include "engine/stopwatch.hpp"

namespace gpufs::bench {

// The last thread that is ready starts the clock, so no thread works before it.
struct start_clock {
  std::optional<stopwatch>* watch;
  void operator()() noexcept { watch->emplace(); }
};

// Threads wait here for each other once they are ready. Each thread passes it once.
class start_line {
 public:
  using barrier = std::barrier<start_clock>;
  explicit start_line(barrier& all) : all_(all) {}
  // A thread that fails before it is ready must not block the other threads.
  ~start_line() {
    if (!passed_) all_.arrive_and_drop();
  }
  start_line(const start_line&) = delete;
  start_line& operator=(const start_line&) = delete;
  void pass() {
    passed_ = true;
    all_.arrive_and_wait();
  }

 private:
  barrier& all_;
  bool passed_ = false;
};

// Runs work(t, start) for t in [0, threads), each on its own thread. The sample's times begin when
// all threads have passed the start and end when all have returned. Rethrows the exception of one
// thread.
sample run_together(unsigned threads,
                    const std::function<void(unsigned thread, start_line& start)>& work);

}  // namespace gpufs::bench

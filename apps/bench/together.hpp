// Host threads that work at the same time.
#pragma once

#include <barrier>
#include <functional>
#include <optional>

#include "bench/bench.hpp"
#include "bench/stopwatch.hpp"

namespace gpufs::bench {

// Starts the clock on the thread that is ready last, so that none works before.
struct start_clock {
  std::optional<stopwatch>* watch;
  void operator()() noexcept { watch->emplace(); }
};

// Where threads wait for each other once they are ready; each passes it once.
class start_line {
 public:
  using barrier = std::barrier<start_clock>;
  explicit start_line(barrier& all) : all_(all) {}
  // A thread that failed before it was ready must not keep the others waiting.
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

// Runs work(t, start) for t in [0, threads), each on a thread of its own. The times of the sample
// are from when all have passed the start to when all have returned. Throws what one of them threw.
sample run_together(unsigned threads,
                    const std::function<void(unsigned thread, start_line& start)>& work);

}  // namespace gpufs::bench

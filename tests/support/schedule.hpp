// What happens at the schedule points of the code under test (GPUFS_SCHEDULE_POINT): nothing,
// random delays that widen races, or a test's own function, with which it brings threads into one
// particular order.
#pragma once

#include <cstdint>
#include <functional>

namespace gpufs::testing {

// Called by the code under test. Thread-safe; one relaxed load while nothing is switched on.
void schedule_point(const char* name);

// While it lives, threads that pass a schedule point are delayed at random: most not at all, many
// give way, some sleep for microseconds, a few for a millisecond. `seed` fixes the choices of each
// thread, by the order in which the threads came first. One at a time.
class random_delays {
 public:
  explicit random_delays(std::uint64_t seed);
  ~random_delays();
  random_delays(const random_delays&) = delete;
  random_delays& operator=(const random_delays&) = delete;
};

// While it lives, `call` is called at each schedule point, by the thread that passes it. What it
// throws comes out of the point: at "thread.start" as if the system had no thread. Its end waits
// for calls under way. One at a time.
class schedule_hook {
 public:
  explicit schedule_hook(std::function<void(const char* name)> call);
  ~schedule_hook();
  schedule_hook(const schedule_hook&) = delete;
  schedule_hook& operator=(const schedule_hook&) = delete;

 private:
  const std::function<void(const char* name)> call_;
};

}  // namespace gpufs::testing

// What happens at the schedule points of the code under test (GPUFS_SCHEDULE_POINT): nothing,
// random delays that widen races, or a function of the test, which forces one particular order of
// threads.
#pragma once

#include <cstdint>
#include <functional>

namespace gpufs::testing {

// Called by the code under test. Thread-safe. One relaxed load if nothing is switched on.
void schedule_point(const char* name);

// During its lifetime, threads that pass a schedule point are delayed at random: most not at all,
// many yield, some sleep for microseconds, a few for a millisecond. `seed` determines the choices
// of each thread, in the order of the threads' first points. One object at a time.
class random_delays {
 public:
  explicit random_delays(std::uint64_t seed);
  ~random_delays();
  random_delays(const random_delays&) = delete;
  random_delays& operator=(const random_delays&) = delete;
};

// During its lifetime, the thread that passes a schedule point calls `call`. An exception of `call`
// leaves the schedule point; at "thread.start" it simulates a lack of threads. The destructor waits
// for running calls. One object at a time.
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

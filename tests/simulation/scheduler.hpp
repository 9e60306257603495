// Threads of a program under a scheduler with a seed, and on a clock of their own: a deterministic
// simulation, as FoundationDB and TigerBeetle have it. The threads are real ones, but only one of
// them runs at a time, and who goes on is the scheduler's choice: at each schedule point
// (support/schedule.hpp), lock, wait, sleep and look at the clock. Where all threads wait, the
// clock goes on to the first end of a wait, so that waiting costs nothing. The same seed makes the
// same program do the same.
//
// With GPUFS_SIMULATION_TRACE set, each change of threads is printed.
//
// interposed.cpp puts itself in the place of what a program calls to start threads, to wait and to
// ask for the time. Only threads of a simulation see the difference. Atomic accesses are no points
// of their own: what happens between two points is never interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gpufs::testing {

struct schedule_options {
  std::uint64_t seed = 1;
  unsigned switches = 256;  // of 1024 points, at how many another thread goes on
  // Of 65,536 points, at how many a thread stands still, and for how long at most (half of the
  // times for less than a thousandth of it).
  unsigned stops = 0;
  std::uint64_t stop_ns_max = 0;
};

class simulation {
 public:
  // Why there is none in this build; null: there is.
  static const char* obstacle();

  explicit simulation(const schedule_options& options);
  ~simulation();
  simulation(const simulation&) = delete;
  simulation& operator=(const simulation&) = delete;

  // Runs `body` as the first thread; returns when it, and all threads that it and these have
  // started, have ended. Rethrows what `body` throws. Once. Where nobody can go on, or the threads
  // do not end, it prints what each waits for and ends the program.
  void run(const std::function<void()>& body);

  // What was made of the seed: a number that differs where anything did.
  std::uint64_t hash() const;
  std::uint64_t steps() const;

  class implementation;

 private:
  const std::unique_ptr<implementation> self_;
};

// For code in a simulation.
namespace simulated {

// A number by the seed, less than `end`.
std::uint64_t below(std::uint64_t end);
// Grows with each point that a thread passes: an order of all that happens.
std::uint64_t step();
void sleep_ns(std::uint64_t ns);
// All threads stand still so long, as in a stopped process.
void stop_process(std::uint64_t ns);
// A point at which another thread may go on.
void point();
// Prints what the calling thread does, if changes of threads are printed.
void trace(const char* what, const std::string& of, std::int64_t result);

}  // namespace simulated
}  // namespace gpufs::testing

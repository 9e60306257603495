// How much work a test with random or enumerated steps does: in `make test` a fixed number of
// steps, of which each day has others (support/seeds.hpp); in `make soak` as many as the time
// allows. A failure prints the command that repeats the step.
//
//   for (work_budget budget(100); budget.next();) {
//     SCOPED_TRACE(budget.replay());
//     run_script(budget.seed());
//   }
//
// Environment: GPUFS_TEST_SEED (the first seed), GPUFS_TEST_SEED_COUNT (number of steps),
// GPUFS_TEST_ROTATION (which share of the seeds, if none is given),
// GPUFS_TEST_SECONDS (begin steps until this time is over; overrides the count),
// GPUFS_TEST_STEP_FILE (a file with the replay command of the current step, for steps that end or
// hang the program).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpufs::testing {

class work_budget {
 public:
  // `usual`: number of steps in `make test`. If a seed is given without a count, there is one step.
  explicit work_budget(std::uint64_t usual);
  // Prints what was covered: "covered: SUITE.TEST: N steps", and the first and last seed.
  ~work_budget();
  work_budget(const work_budget&) = delete;
  work_budget& operator=(const work_budget&) = delete;

  // Begins the next step. Returns false if the share is done, or if the current test has failed.
  bool next();
  std::uint64_t seed() const { return first_seed_ + begun_ - 1; }
  std::uint64_t begun() const { return begun_; }
  // Adds to the report at the end, for example covers("operations", 1000).
  void covers(const std::string& unit, std::uint64_t count);
  // Returns the command that repeats this step.
  std::string replay() const;

 private:
  std::uint64_t first_seed_, steps_, begun_ = 0;
  std::chrono::steady_clock::time_point end_;  // if a time was given
  bool by_time_;
  std::string unit_;
  std::uint64_t covered_ = 0;
  int step_file_ = -1;
};

}  // namespace gpufs::testing

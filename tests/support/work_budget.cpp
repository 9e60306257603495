#include "support/work_budget.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

std::string current_test() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? "*" : std::string(test->test_suite_name()) + "." + test->name();
}

}  // namespace

work_budget::work_budget(std::uint64_t usual)
    : first_seed_(seeds_of(usual).first), steps_(seeds_of(usual).count),
      end_(std::chrono::steady_clock::now() +
           std::chrono::seconds(from_environment("GPUFS_TEST_SECONDS", 0))),
      by_time_(std::getenv("GPUFS_TEST_SECONDS") != nullptr) {
  if (const char* path = std::getenv("GPUFS_TEST_STEP_FILE"); path != nullptr)
    step_file_ = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
}

work_budget::~work_budget() {
  if (step_file_ >= 0) (void)::close(step_file_);
  std::printf("covered: %s: %llu steps", current_test().c_str(),
              static_cast<unsigned long long>(begun_));
  if (begun_ != 0)
    std::printf(" (seeds %llu to %llu)", static_cast<unsigned long long>(first_seed_),
                static_cast<unsigned long long>(seed()));
  if (!unit_.empty())
    std::printf(", %llu %s", static_cast<unsigned long long>(covered_), unit_.c_str());
  std::printf("\n");
}

bool work_budget::next() {
  if (::testing::Test::HasFailure()) return false;
  if (by_time_ ? std::chrono::steady_clock::now() >= end_ : begun_ == steps_) return false;
  ++begun_;
  if (step_file_ >= 0) {
    const std::string line = replay() + "\n";
    if (::ftruncate(step_file_, 0) != 0 || ::pwrite(step_file_, line.data(), line.size(), 0) < 0)
      ADD_FAILURE() << "GPUFS_TEST_STEP_FILE cannot be written";
  }
  return true;
}

void work_budget::covers(const std::string& unit, std::uint64_t count) {
  unit_ = unit;
  covered_ += count;
}

std::string work_budget::replay() const {
  return "replay: GPUFS_TEST_SEED=" + std::to_string(seed()) +
         " GPUFS_TEST_SEED_COUNT=1 build/release/tests/gpufs_tests --gtest_filter=" +
         current_test();
}

}  // namespace gpufs::testing

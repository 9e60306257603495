// Random calls on real files, beside outside programs that change them, against a naive model:
// every byte that is read, and every file after each close and sync. As fsx of xfstests does, by
// many groups.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "fsx/fsx_run.hpp"
#include "support/seeds.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

void run_in(const std::string& folder, std::uint64_t steps) {
  for (work_budget budget(is_sanitized ? steps / 4 : steps); budget.next();) {
    SCOPED_TRACE(budget.replay());
    budget.covers("calls", run_fsx(budget.seed(), folder));
  }
}

TEST(fsx, agrees_with_a_naive_model_on_the_file_system_of_temporary_files) { run_in({}, 8); }

// Here writes go by mappings of the files.
TEST(fsx, agrees_with_a_naive_model_on_tmpfs) {
  std::error_code absent;
  if (!std::filesystem::is_directory("/dev/shm", absent)) GTEST_SKIP() << "there is no /dev/shm";
  run_in("/dev/shm", 16);
}

}  // namespace
}  // namespace gpufs::testing

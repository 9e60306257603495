// A process that is stopped and goes on (Ctrl-Z, a debugger, a frozen container), with requests under way.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/file_world.hpp"
#include "guest/guest.hpp"

namespace gpufs::testing {
namespace {

class guest_stopped : public guest {};
INSTANTIATE_TEST_SUITE_P(in, guest_stopped, ::testing::Values(guest_setting{4, true, false}),
                         ::testing::PrintToStringParamName());

// Stopped for longer than a request may take.
TEST_P(guest_stopped, loses_time_and_no_byte) {
  in_child([this] {
    mount_options o = options();
    o.request_timeout_ns = 2'000'000'000;
    o.reclaim_timeout_ns = 2'000'000'000;
    mount fs(o);
    const pid_t self = getpid(), stopper = fork();
    if (stopper == 0) {
      (void)usleep(300'000);
      (void)::kill(self, SIGSTOP);
      (void)usleep(3'000'000);
      (void)::kill(self, SIGCONT);
      (void)usleep(300'000);
      _exit(0);
    }
    session calls(fs, group_kind::warp);
    std::string expected(500'000, '\0');
    const std::int32_t fd = calls.open(path("kept"), O_RDWR | O_CREAT);
    ASSERT_GE(fd, 0);
    int status = 0;
    for (unsigned round = 0; waitpid(stopper, &status, WNOHANG) == 0 && !HasFailure(); ++round) {
      // More than the cache: pages are written back all the time.
      for (std::uint64_t at = round % 7 * 1000; at + 20'000 < expected.size(); at += 20'000) {
        const std::string bytes = self_checking(1 + round % 200, round % 250, at, 15'000);
        ASSERT_EQ(calls.write(fd, bytes, static_cast<std::int64_t>(at)), 15'000);
        expected.replace(at, bytes.size(), bytes);
      }
      if (round % 4 == 0) {
        ASSERT_EQ(calls.sync(fd), 0);
      }
      calls.expect_read(fd, expected, static_cast<std::int64_t>(round * 5000 % 400'000), 50'000);
    }
    EXPECT_EQ(calls.close(fd), 0);
    expected.resize(expected.find_last_not_of('\0') + 1);
    std::string there = content("kept");
    there.resize(there.find_last_not_of('\0') + 1);
    expect_same_bytes(there, expected, "kept");
    EXPECT_TRUE(fs.file_errors().errors.empty());
    EXPECT_EQ(fs.stats()[counter::rpc_failures], 0u);
  });
}

}  // namespace
}  // namespace gpufs::testing

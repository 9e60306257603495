// A process that is stopped and goes on (Ctrl-Z, a debugger, a frozen container), with requests
// under way.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "api/file_world.hpp"
#include "gpufs/error.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "guest/guest.hpp"
#include "support/fault_backend.hpp"

namespace gpufs::testing {
namespace {

class guest_stopped : public guest {};
INSTANTIATE_TEST_SUITE_P(in, guest_stopped, ::testing::Values(guest_setting{4, true, false}),
                         ::testing::PrintToStringParamName());

// Shared with the process that stops this one.
struct progress {
  std::atomic<int> under_way{0};  // calls of the backend
  std::atomic<bool> goes_on{false};
};
progress* map_progress() {
  void* const memory =
      mmap(nullptr, sizeof(progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED ? new (memory) progress : nullptr;
}

// A process that stops this one for 4.5 s as soon as so many calls are under way, and lets these go
// on `later_us` after.
pid_t fork_stopper(progress& all, int calls, useconds_t later_us) {
  const pid_t self = getpid(), stopper = fork();
  if (stopper != 0) return stopper;
  while (all.under_way < calls) (void)usleep(1000);
  (void)::kill(self, SIGSTOP);
  (void)usleep(4'500'000);
  (void)::kill(self, SIGCONT);
  (void)usleep(later_us);
  all.goes_on = true;
  _exit(0);
}

// Stopped for longer than a request may take, with a read and a write that the host has begun. They
// end a while after.
TEST_P(guest_stopped, requests_under_way_get_their_answers) {
  in_child([this] {
    progress* const shared = map_progress();
    ASSERT_NE(shared, nullptr);
    progress& all = *shared;
    const auto io = std::make_shared<fault_backend>(make_posix_backend());
    for (const operation on : {operation::read, operation::write}) {
      fault waits;
      waits.on = on;
      waits.nth = 1;
      waits.before = [&all] {
        ++all.under_way;
        while (!all.goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        // So that those who wait look at their clocks before they have an answer.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      };
      io->add(waits);
    }
    mount_options o = options();
    o.backend = io;
    o.request_timeout = std::chrono::seconds(4);
    const std::string read = self_checking(1, 0, 0, 100'000),
                      written = self_checking(2, 0, 0, 20'000);
    (void)folder_.write("read", read);
    mount fs(o);
    const pid_t stopper = fork_stopper(all, 2, 0);
    std::thread reader([&] {
      session calls(fs, group_kind::warp);
      calls.expect_read(calls.open(path("read")), read, 50'000, 4096);
    });
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("written"), O_RDWR | O_CREAT);
    EXPECT_EQ(calls.write(fd, written, 0), 20'000);
    EXPECT_EQ(calls.sync(fd), 0);
    reader.join();
    EXPECT_EQ(calls.close(fd), 0);
    expect_same_bytes(content("written"), written, "written");
    EXPECT_EQ(fs.stats()[counter::rpc_failures], 0u);
    EXPECT_EQ(waitpid(stopper, nullptr, 0), stopper);
  });
}

// Stopped at any moment.
TEST_P(guest_stopped, loses_time_and_no_byte) {
  in_child([this] {
    mount_options o = options();
    o.request_timeout = std::chrono::seconds(4);
    o.reclaim_timeout = std::chrono::seconds(4);
    mount fs(o);
    const pid_t self = getpid(), stopper = fork();
    if (stopper == 0) {
      (void)usleep(300'000);
      (void)::kill(self, SIGSTOP);
      (void)usleep(4'500'000);
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

// Writes, says so, and writes more and closes the file when the test lets it.
struct slow_writer {
  const char* path;
  progress* all;

  void operator()(const mount_ref& fs) const {
    const auto g = this_thread();
    if (g.grid_rank() != 0) return;
    const std::int32_t fd = gopen(g, fs, path, O_RDWR | O_CREAT);
    EXPECT_EQ(gwrite(g, fs, fd, "first", 5, 0), 5);
    ++all->under_way;
    while (!all->goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(gwrite(g, fs, fd, "later", 5, 5), 5);
    EXPECT_EQ(gclose(g, fs, fd), 0);
  }
};

// Stopped for longer than the kernel may take.
TEST_P(guest_stopped, an_unmount_under_way_waits_as_long_as_without) {
  in_child([this] {
    progress* const shared = map_progress();
    ASSERT_NE(shared, nullptr);
    progress& all = *shared;
    mount_options o = options();
    o.unmount_timeout = std::chrono::seconds(8);
    mount fs(o);
    const pid_t stopper = fork_stopper(all, 2, 500'000);  // in which the clocks are looked at
    const std::string name = path("written");
    std::thread kernel([&] { launch(fs, {}, slow_writer{name.c_str(), &all}); });
    std::thread begun([&] {
      while (all.under_way == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (;;) {
        try {
          (void)fs.ref();
        } catch (const error&) {
          break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ++all.under_way;
    });
    while (all.under_way == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_NO_THROW(fs.unmount());
    begun.join();
    kernel.join();
    EXPECT_EQ(content("written"), "firstlater");
    EXPECT_TRUE(fs.file_errors().errors.empty());
    EXPECT_EQ(waitpid(stopper, nullptr, 0), stopper);
  });
}

// The same while what was not closed is written: the write that is under way ends a moment after.
TEST_P(guest_stopped, so_does_the_write_of_what_was_not_closed) {
  in_child([this] {
    progress* const shared = map_progress();
    ASSERT_NE(shared, nullptr);
    progress& all = *shared;
    const auto io = std::make_shared<fault_backend>(make_posix_backend());
    fault waits;
    waits.on = operation::write;
    waits.nth = 1;
    waits.before = [&all] {
      ++all.under_way;
      while (!all.goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    io->add(waits);
    mount_options o = options();
    o.backend = io;
    o.request_timeout = std::chrono::seconds(4);
    mount fs(o);
    const pid_t stopper = fork_stopper(all, 1, 500'000);
    {
      session calls(fs, group_kind::warp);
      const std::int32_t fd = calls.open(path("written"), O_RDWR | O_CREAT);
      EXPECT_EQ(calls.write(fd, "bytes", 0), 5);
    }
    EXPECT_NO_THROW(fs.unmount());
    EXPECT_EQ(content("written"), "bytes");
    EXPECT_TRUE(fs.file_errors().errors.empty());
    EXPECT_EQ(waitpid(stopper, nullptr, 0), stopper);
  });
}

}  // namespace
}  // namespace gpufs::testing

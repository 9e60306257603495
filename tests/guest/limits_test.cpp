// Limits that the system sets to a process: a mount says what it lacks, or goes on with what there
// is.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "api/file_world.hpp"
#include "gpufs/error.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "guest/guest.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

class guest_limits : public guest {
 protected:
  // No more threads. For root there is no such limit.
  static void allow_no_threads() {
    if (geteuid() == 0) {
      if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        throw not_possible("cannot become somebody who has limits");
    }
    const rlimit none{1, 1};
    ASSERT_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
    pthread_t one;
    const int status =
        pthread_create(&one, nullptr, [](void*) -> void* { return nullptr; }, nullptr);
    if (status == 0) {
      (void)pthread_join(one, nullptr);
      throw not_possible("the system sets no limit to threads");
    }
  }
  void copy_within(std::uint64_t more) const;
};
INSTANTIATE_TEST_SUITE_P(in, guest_limits, ::testing::ValuesIn(few_guest_settings()),
                         ::testing::PrintToStringParamName());

TEST_P(guest_limits, no_thread_for_a_mount_is_an_error) {
  in_child([this] {
    ASSERT_EQ(chmod((folder_ / "").c_str(), 0777), 0);
    allow_no_threads();
    try {
      mount fs(options());
      ADD_FAILURE() << "mounted without threads";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EAGAIN) << e.what();
    }
  });
}

TEST_P(guest_limits, no_thread_for_a_launch_is_none_for_its_blocks) {
  in_child([this] {
    ASSERT_EQ(chmod((folder_ / "").c_str(), 0777), 0);
    (void)folder_.write("file", "content");
    mount fs(options());
    allow_no_threads();
    constexpr std::uint32_t blocks = 8;
    std::atomic<std::uint32_t> ran{0};
    launch(fs, {.blocks = blocks, .threads = 1}, [&ran](const mount_ref&) { ++ran; });
    EXPECT_EQ(ran, blocks);
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("file"));
    calls.expect_read(fd, "content", 0, 100);
    const std::int32_t made = calls.open(path("made"), O_RDWR | O_CREAT);
    EXPECT_EQ(calls.write(made, "left open", 0), 9);
    EXPECT_THROW((void)fs.open_sink([](const char*, std::size_t) { return 0; }), error);
    EXPECT_NO_THROW(fs.unmount());
    EXPECT_EQ(content("made"), "left open");
  });
}

// ---- address space

std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// With so many bytes more than the process has mapped: copies a file, or an error says that there
// is no memory.
void guest_limits::copy_within(std::uint64_t more) const {
  const std::string large = self_checking(2, 0, 0, 400'000);
  (void)folder_.write("large", large);
  const rlimit limit{mapped_bytes() + more, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  try {
    mount fs(options());
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("large")),
                       made = calls.open(path("made"), O_RDWR | O_CREAT);
    std::string copied;
    bool is_whole = fd >= 0 && made >= 0;
    for (std::int64_t at = 0; is_whole && at < 400'000; at += 4096) {
      const read_answer read = calls.read(fd, at, 4096);
      is_whole = read.result > 0;
      if (!is_whole) break;
      ASSERT_EQ(read.bytes, large.substr(static_cast<std::size_t>(at), 4096));
      is_whole = calls.write(made, read.bytes, at) == read.result;
    }
    if (made >= 0 && calls.close(made) == 0 && is_whole) {
      EXPECT_EQ(content("made"), large);
    }
    fs.unmount();
  } catch (const error& e) {
    EXPECT_TRUE(e.code().value() == ENOMEM || e.code().value() == EAGAIN || e.code().value() == EIO)
        << e.what();
  } catch (const std::bad_alloc&) {
  }
}

// As much of it as there is for each size: then the mount works, or says that there is no memory or
// no thread. Never does a read give other bytes than the file's.
TEST_P(guest_limits, little_address_space_is_an_error_or_enough) {
  if (is_sanitized) GTEST_SKIP() << "sanitizers need all of the address space";
  in_child([this] {
    constexpr std::uint64_t step = 400'000;  // a thread takes 8 MiB, what else a mount has less
    for (std::uint64_t more = 0; more < 500 * step && !HasFailure();
         more += more < 60 * step ? step : 30 * step) {
      (void)std::fflush(nullptr);
      const pid_t child = fork();
      if (child == 0) {
        copy_within(more);
        (void)std::fflush(nullptr);
        _exit(HasFailure() ? 1 : 0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << more << " bytes more";
    }
  });
}

// ---- the size of files

TEST_P(guest_limits, a_limit_of_file_size_is_an_error_of_each_call_that_meets_it) {
  in_child([this] {
    constexpr rlim_t most = 50'000;
    mount fs(options());
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("made"), O_RDWR | O_CREAT);
    // Of this process, until the test has something to say.
    struct limited {
      rlimit before{};
      limited() {
        (void)getrlimit(RLIMIT_FSIZE, &before);
        const rlimit low{most, before.rlim_max};
        (void)setrlimit(RLIMIT_FSIZE, &low);
      }
      ~limited() { (void)setrlimit(RLIMIT_FSIZE, &before); }
      limited(const limited&) = delete;
      limited& operator=(const limited&) = delete;
    } const size;
    const std::string content_there = self_checking(1, 0, 0, most);
    ASSERT_EQ(calls.write(fd, content_there, 0), static_cast<std::int64_t>(most));
    EXPECT_EQ(calls.sync(fd), 0);
    EXPECT_EQ(calls.truncate(fd, 60'000), -EFBIG);
    ASSERT_EQ(calls.write(fd, std::string(100'000, 'x'), most), 100'000);
    EXPECT_EQ(calls.sync(fd), -EFBIG);
    EXPECT_EQ(calls.close(fd), -EFBIG);
    expect_same_bytes(content("made"), content_there, "what fits");
  });
}

}  // namespace
}  // namespace gpufs::testing

// A process that forks while it has a mount: the child may end, run another program, or go on; the
// parent's mount is its own.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "guest/guest.hpp"

namespace gpufs::testing {
namespace {

class guest_forks : public guest {
 protected:
  // Has children made, one after the other, while kernels of this process use files; then compares
  // the files.
  void fork_meanwhile(const std::function<void()>& be_the_child, int expected_status) {
    mount fs(options());
    std::atomic<bool> is_done{false};
    std::atomic<int> wrong{0}, made{0};
    std::thread program([&] {
      do {
        const pid_t child = fork();
        if (child == 0) {
          be_the_child();
          _exit(99);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
            WEXITSTATUS(status) != expected_status)
          ++wrong;
        ++made;
      } while (!is_done);
    });
    session calls(fs, group_kind::warp);
    const std::int32_t kept = calls.open(path("kept"), O_RDWR | O_CREAT);
    ASSERT_GE(kept, 0);
    for (unsigned i = 0; i < 4; ++i) {
      use(fs, i);
      EXPECT_EQ(calls.write(kept, std::string(30'000, static_cast<char>('a' + i)), i * 20'000),
                30'000);
    }
    is_done = true;
    program.join();
    EXPECT_EQ(wrong, 0) << "of " << made;
    EXPECT_NO_THROW(fs.unmount());
    std::string expected;
    for (unsigned i = 0; i < 4; ++i)
      expected.resize(i * 20'000), expected.append(30'000, static_cast<char>('a' + i));
    expect_same_bytes(content("kept"), expected, "kept");
  }
};
INSTANTIATE_TEST_SUITE_P(in, guest_forks, ::testing::ValuesIn(few_guest_settings()),
                         ::testing::PrintToStringParamName());

TEST_P(guest_forks, whose_children_end_at_once) {
  in_child([this] { fork_meanwhile([] { _exit(7); }, 7); });
}

TEST_P(guest_forks, whose_children_run_another_program) {
  in_child(
      [this] { fork_meanwhile([] { (void)execl("/bin/sh", "sh", "-c", "exit 7", nullptr); }, 7); });
}

TEST_P(guest_forks, whose_children_are_killed) {
  in_child([this] {
    mount fs(options());
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("kept"), O_RDWR | O_CREAT);
    EXPECT_EQ(calls.write(fd, "bytes", 0), 5);
    const pid_t child = fork();
    if (child == 0) {
      for (;;) (void)pause();
    }
    use(fs);
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    use(fs, 1);
    EXPECT_EQ(calls.close(fd), 0);
    EXPECT_EQ(content("kept"), "bytes");
  });
}

// A child that ends as programs do destroys what it has of the parent's mount. Its threads are not
// there; it must neither wait for them nor write the parent's files.
TEST_P(guest_forks, whose_children_destroy_their_copy_of_the_mount) {
  in_child([this] {
    (void)folder_.write("kept", std::string(20'000, '-'));
    auto fs = std::make_unique<mount>(options());
    session calls(*fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("kept"), O_RDWR);
    ASSERT_EQ(calls.write(fd, "from the parent", 5), 15);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      (void)dup2(ends[1], STDERR_FILENO);
      fs.reset();
      _exit(7);
    }
    (void)::close(ends[1]);
    std::string said;
    char part[200];
    for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;)
      said.append(part, static_cast<std::size_t>(n));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    EXPECT_EQ(said, "");
    EXPECT_EQ(content("kept"), std::string(20'000, '-')) << "written by the child";
    use(*fs);
    EXPECT_EQ(calls.close(fd), 0);
    EXPECT_EQ(content("kept").substr(0, 25), "-----from the parent-----");
  });
}

TEST_P(guest_forks, whose_children_get_an_error_from_unmounting_it) {
  in_child([this] {
    mount fs(options());
    const pid_t child = fork();
    if (child == 0) {
      try {
        fs.unmount();
        _exit(1);
      } catch (const error&) {
        _exit(7);
      }
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    use(fs);
  });
}

TEST_P(guest_forks, whose_children_mount_for_themselves) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads after a fork with threads";
#endif
  in_child([this] {
    mount fs(options());
    use(fs);
    in_child([this] {
      mount own(options());
      use(own, 1);
    });
    use(fs, 2);
  });
}

}  // namespace
}  // namespace gpufs::testing

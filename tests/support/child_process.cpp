#include "support/child_process.hpp"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>

namespace gpufs::testing {
namespace {

enum exit_status : int { good = 0, failed = 1, impossible = 2 };

void tell(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(to, text.data(), text.size());
    if (n <= 0) _exit(failed);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string all_of(int from) {
  std::string text;
  char part[512];
  for (ssize_t n = 0; (n = ::read(from, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  return text;
}

bool put(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool is_put = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) (void)::close(fd);
  return is_put;
}

[[noreturn]] void be_the_child(const std::function<void()>& body, unsigned longest_s, int told) {
  (void)alarm(longest_s);
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    try {
      body();
    } catch (const not_possible& e) {
      tell(told, e.what());
      _exit(impossible);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "threw " << e.what();
    }
  }
  (void)std::fflush(nullptr);
  bool has_failed = false;
  for (int i = 0; i < results.size(); ++i) {
    const ::testing::TestPartResult& r = results.GetTestPartResult(i);
    if (!r.failed()) continue;
    has_failed = true;
    const char* const file = r.file_name() == nullptr ? "?" : r.file_name();
    tell(told, std::string(file) + ":" + std::to_string(r.line_number()) + ": " + r.message() + "\n");
  }
  _exit(has_failed ? failed : good);
}

}  // namespace

void in_child(const std::function<void()>& body, unsigned longest_s) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0) << std::strerror(errno);
  (void)std::fflush(nullptr);  // what is not out yet would come twice
  const pid_t child = fork();
  ASSERT_GE(child, 0) << std::strerror(errno);
  if (child == 0) {
    (void)::close(ends[0]);
    be_the_child(body, longest_s, ends[1]);
  }
  (void)::close(ends[1]);
  const std::string told = all_of(ends[0]);
  (void)::close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "the child was ended by signal " << WTERMSIG(status) << " after " << told;
  if (WEXITSTATUS(status) == impossible) GTEST_SKIP() << told;
  EXPECT_EQ(WEXITSTATUS(status), good) << told;
}

void enter_own_namespace() {
  const std::string user = std::to_string(geteuid()), group = std::to_string(getegid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) {
    if (put("/proc/self/setgroups", "deny") && put("/proc/self/uid_map", "0 " + user + " 1") &&
        put("/proc/self/gid_map", "0 " + group + " 1"))
      return;
    throw not_possible(std::string("no rights in a user namespace: ") + std::strerror(errno));
  }
  const int error_number = errno;
  // Nothing that is mounted there is to be seen elsewhere.
  if (unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) return;
  throw not_possible(std::string("no namespace of one's own: ") + std::strerror(error_number));
}

}  // namespace gpufs::testing

#include "support/child_process.hpp"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace gpufs::testing {
namespace {

constexpr const char* is_child_variable = "GPUFS_TEST_IS_CHILD";

std::string all_of(int from) {
  std::string text;
  char part[512];
  for (ssize_t n = 0; (n = ::read(from, part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(n));
  return text;
}

bool put(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool is_put =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) (void)::close(fd);
  return is_put;
}

// For the child only: its results belong to the parent. LeakSanitizer searches for leaks at the end
// of the program with a separate thread, which the child may be unable to start.
std::vector<std::string> environment_of_child() {
  const char* const options = std::getenv("ASAN_OPTIONS");
  std::vector<std::string> all{
      std::string(is_child_variable) + "=1",
      std::string("ASAN_OPTIONS=") + (options == nullptr ? "" : options) + ":detect_leaks=0"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view v = *variable;
    if (!v.starts_with("GTEST_") && !v.starts_with("ASAN_OPTIONS=")) all.emplace_back(v);
  }
  return all;
}

}  // namespace

void in_child(const std::function<void()>& body, unsigned longest_s) {
  if (std::getenv(is_child_variable) != nullptr) {
    (void)alarm(longest_s);
    try {
      body();
    } catch (const not_possible& e) {
      GTEST_SKIP() << e.what();
    }
    return;
  }
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
  std::vector<std::string> variables = environment_of_child();
  std::vector<char*> environment;
  for (std::string& v : variables) environment.push_back(v.data());
  environment.push_back(nullptr);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0) << std::strerror(errno);
  const pid_t child = fork();
  ASSERT_GE(child, 0) << std::strerror(errno);
  if (child == 0) {
    // Nothing here may wait for another thread of the parent.
    (void)dup2(ends[1], STDOUT_FILENO);
    (void)dup2(ends[1], STDERR_FILENO);
    (void)execle("/proc/self/exe", "gpufs_tests", filter.c_str(), nullptr, environment.data());
    _exit(127);
  }
  (void)::close(ends[1]);
  const std::string told = all_of(ends[0]);
  (void)::close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "the child was ended by signal " << WTERMSIG(status)
                                 << " after " << told;
  EXPECT_EQ(WEXITSTATUS(status), 0) << told;
  if (told.find("[  SKIPPED ]") != std::string::npos) GTEST_SKIP() << told;
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
  // Mounts must not be visible outside.
  if (unshare(CLONE_NEWNS) == 0 &&
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0)
    return;
  throw not_possible(std::string("no namespace of one's own: ") + std::strerror(error_number));
}

}  // namespace gpufs::testing

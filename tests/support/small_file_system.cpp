#include "support/small_file_system.hpp"

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

#include "gpufs/error.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

enum exit_status : int { good = 0, failed = 1, forbidden = 2 };
constexpr unsigned longest_s = 60;

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

void put(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool is_put = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error_number = errno;
  if (fd >= 0) (void)::close(fd);
  if (!is_put) throw error(error_number, "write", path);
}

// As root of a namespace that has no rights elsewhere.
void mount_here(const std::string& folder, std::uint64_t bytes) {
  const std::string user = std::to_string(getuid()), group = std::to_string(getgid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) throw error(errno, "unshare");
  put("/proc/self/setgroups", "deny");
  put("/proc/self/uid_map", "0 " + user + " 1");
  put("/proc/self/gid_map", "0 " + group + " 1");
  const std::string options = "size=" + std::to_string(bytes);
  if (::mount("gpufs-test", folder.c_str(), "tmpfs", 0, options.c_str()) != 0) throw error(errno, "mount", folder);
}

[[noreturn]] void be_the_child(const std::string& folder, std::uint64_t bytes,
                               const std::function<void(const std::string& folder)>& body, int told) {
  (void)alarm(longest_s);
  try {
    mount_here(folder, bytes);
  } catch (const error& e) {
    tell(told, "errno " + std::to_string(e.code().value()) + ", " + e.what());
    _exit(forbidden);
  }
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    try {
      body(folder);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "threw " << e.what();
    }
  }
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

void in_small_file_system(std::uint64_t bytes, const std::function<void(const std::string& folder)>& body) {
  const temporary_folder place;
  const std::string folder = place / "small";
  std::filesystem::create_directory(folder);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0) << std::strerror(errno);
  (void)std::fflush(nullptr);  // what is not out yet would come twice
  const pid_t child = fork();
  ASSERT_GE(child, 0) << std::strerror(errno);
  if (child == 0) be_the_child(folder, bytes, body, ends[1]);
  (void)::close(ends[1]);
  const std::string told = all_of(ends[0]);
  (void)::close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "the child was ended by signal " << WTERMSIG(status) << " after " << told;
  if (WEXITSTATUS(status) == forbidden) GTEST_SKIP() << "no file system of one's own here: " << told;
  EXPECT_EQ(WEXITSTATUS(status), good) << told;
}

}  // namespace gpufs::testing

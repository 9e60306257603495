// The process dies at every call of the backend in turn. What was synced before is in the file
// then, and no byte is there that was never written.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api/matrix.hpp"
#include "support/seeds.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

struct step {
  std::uint64_t at;
  std::string bytes;
};

constexpr std::uint64_t page_bytes = 512;
constexpr int steps_of_sync = 3;

std::vector<step> make_steps() {
  std::mt19937_64 random(11);
  std::vector<step> steps;
  for (unsigned i = 0; i < 15; ++i) {
    const std::uint64_t n = 1 + random() % (3 * page_bytes);
    steps.push_back({random() % (10 * page_bytes), std::string(n, static_cast<char>('a' + i))});
  }
  return steps;
}

// Dies at the k-th of these calls. Tells through `told` how many steps were synced.
[[noreturn]] void write_and_die(const std::string& path, const std::vector<step>& steps,
                                operation on, std::uint64_t k, int told) {
  auto io = std::make_shared<fault_backend>(make_posix_backend());
  fault death;
  death.on = on;
  death.nth = k;
  death.before = [] { _exit(7); };
  io->add(death);
  mount_options options;
  options.device = device_kind::cpu;
  options.backend = io;
  options.page_bytes = page_bytes;
  options.cache_bytes = 12 * page_bytes;  // dirty pages leave for want of frames, too
  options.workers = 2;
  options.cpu_threads = 2;
  mount fs(options);
  session calls(fs, group_kind::warp);
  const std::int32_t fd = calls.open(path, O_RDWR | O_CREAT);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (calls.write(fd, steps[i].bytes, static_cast<std::int64_t>(steps[i].at)) < 0) _exit(1);
    if ((i + 1) % steps_of_sync != 0) continue;
    if (calls.sync(fd) != 0) _exit(2);
    const char synced = static_cast<char>(i + 1);
    if (write(told, &synced, 1) != 1) _exit(3);
  }
  _exit(calls.close(fd) == 0 ? 0 : 4);
}

void check_file(const std::string& path, const std::string& before, const std::vector<step>& steps,
                std::size_t synced) {
  const std::string content = [&] {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }();
  const auto covers = [](const step& s, std::uint64_t i) {
    return i >= s.at && i < s.at + s.bytes.size();
  };
  std::uint64_t size_synced = before.size();
  for (std::size_t i = 0; i < synced; ++i)
    size_synced = std::max<std::uint64_t>(size_synced, steps[i].at + steps[i].bytes.size());
  ASSERT_GE(content.size(), size_synced);
  for (std::uint64_t i = 0; i < content.size(); ++i) {
    // The value as synced, or one that was written later.
    char last = i < before.size() ? before[i] : '\0';
    std::set<char> allowed;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      if (!covers(steps[k], i)) continue;
      if (k < synced) last = steps[k].bytes[0];
      else allowed.insert(steps[k].bytes[0]);
    }
    allowed.insert(last);
    ASSERT_TRUE(allowed.contains(content[i]))
        << "byte " << i << " is " << content[i] << ", synced " << last;
  }
}

class crash : public ::testing::TestWithParam<operation> {};
INSTANTIATE_TEST_SUITE_P(at, crash,
                         ::testing::Values(operation::write, operation::sync, operation::read),
                         [](const auto& info) {
                           return info.param == operation::write  ? "write"
                                  : info.param == operation::sync ? "sync"
                                                                  : "read";
                         });

TEST_P(crash, what_was_synced_is_there_and_nothing_that_was_not_written) {
  const std::vector<step> steps = make_steps();
  const std::string before(6 * page_bytes + 100, '-');
  int exit_status = 7;
  std::uint64_t k = 1;
  for (; exit_status == 7 && k < 500; k += is_sanitized ? 4 : 1) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "call " + std::to_string(k));
    const temporary_folder folder;
    const std::string path = folder.write("file", before);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_and_die(path, steps, GetParam(), k, ends[1]);
    (void)close(ends[1]);
    std::size_t synced = 0;
    for (char told = 0; read(ends[0], &told, 1) == 1;) synced = static_cast<std::size_t>(told);
    (void)close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    exit_status = WEXITSTATUS(status);
    ASSERT_TRUE(exit_status == 7 || exit_status == 0) << exit_status;
    check_file(path, before, steps, exit_status == 0 ? steps.size() : synced);
  }
  EXPECT_EQ(exit_status, 0);
  EXPECT_GE(k, 3u) << "it never died";
}

}  // namespace
}  // namespace gpufs::testing

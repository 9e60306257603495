// A descriptor that is closed while a call writes through it: an error of the program's; but what
// the call had stored is not left for others to find, or to write.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

class closed_meanwhile : public conformance {
 protected:
  // `write`, with a close between its stores and its marks.
  template <class Write>
  void write_and_close(std::int32_t fd, const Write& write) {
    session other(fs(), GetParam().kind);
    std::atomic<bool> has_stored{false}, go_on{false};
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "write.mark") != 0 || has_stored.exchange(true)) return;
      wait_until([&] { return go_on.load(); });
    });
    std::int64_t result = 0;
    std::thread writes([&] { result = write(); });
    wait_until([&] { return has_stored.load(); });
    EXPECT_TRUE(has_stored);
    EXPECT_EQ(other.close(fd), 0);
    go_on = true;
    writes.join();
    EXPECT_EQ(result, -EBADF);
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, closed_meanwhile,
                         ::testing::ValuesIn(settings_of_one_page_size()), name_of_setting);

TEST_P(closed_meanwhile, a_write_of_a_whole_page_leaves_what_the_file_has) {
  create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const std::int32_t kept = open("a", O_RDONLY);  // and with it what is cached of the file
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  write_and_close(fd, [&] { return calls().write(fd, std::string(page_bytes(), 'w'), 0); });
  const std::string content = files->content("a");
  calls().expect_read(kept, content, 0, content.size());
  EXPECT_EQ(calls().close(kept), 0);
}

TEST_P(closed_meanwhile, a_write_of_bytes_is_not_made_later) {
  constexpr std::uint64_t frames = 8;
  std::string content = create("a", 3 * frames * page_bytes());
  options.cache_bytes = frames * page_bytes();  // so that all frames are used again
  const std::int32_t fd = open("a", O_RDWR);
  const std::int32_t kept = open("a", O_RDONLY);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  write_and_close(fd, [&] { return calls().write(fd, "never", 20); });
  content.replace(5, 4, "some");
  const std::int32_t again = open("a", O_RDWR);
  for (std::uint64_t at = 20; at < content.size(); at += page_bytes()) {
    calls().expect_read(again, content, static_cast<std::int64_t>(at), 10);
    files->write_at("a", at, "theirs");
    content.replace(at, 6, "theirs");
    ASSERT_EQ(calls().write(again, "x", static_cast<std::int64_t>(at + 80)), 1);
    content[at + 80] = 'x';
  }
  EXPECT_EQ(calls().close(again), 0);
  EXPECT_EQ(calls().close(kept), 0);
  expect_same_bytes(files->content("a"), content, "a");
}

// One close too many, which looks while the file is open and takes its step when the next open has
// the record; then that one is closed, before the step is taken back.
TEST_P(closed_meanwhile, a_close_too_many_lets_no_other_fail) {
  create("a", 100);
  create("b", 100);
  options.open_files = 1;  // so that both have the same record
  const std::int32_t fd = open("a");
  session other(fs(), GetParam().kind);
  std::atomic<bool> has_looked{false}, step{false}, has_stepped{false}, step_back{false};
  const schedule_hook hook([&](const char* name) {
    if (std::strcmp(name, "file.drop_holder") == 0 && !has_looked.exchange(true)) {
      wait_until([&] { return step.load(); });
    } else if (std::strcmp(name, "file.step_back") == 0) {
      has_stepped = true;
      wait_until([&] { return step_back.load(); });
    } else if (std::strcmp(name, "file.wait_to_drop_holder") == 0) {
      step_back = true;
    }
  });
  std::int32_t result = 0;
  std::thread closes([&] { result = other.close(fd); });
  wait_until([&] { return has_looked.load(); });
  ASSERT_EQ(calls().close(fd), 0);
  const std::int32_t next = open("b");
  ASSERT_GE(next, 0);
  step = true;
  wait_until([&] { return has_stepped.load(); });
  EXPECT_EQ(calls().close(next), 0);
  step_back = true;
  closes.join();
  EXPECT_EQ(result, -EBADF);
  EXPECT_EQ(fs().stats()[counter::closes], 2u);
}

}  // namespace
}  // namespace gpufs::testing

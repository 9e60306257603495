// An error of a write-back is for the call that met it, and for no other that goes on meanwhile;
// and a close that meets one takes nothing from those who have opened the file since.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

class told_once : public conformance {
 protected:
  // `meets` is a call that has met an error, and has not returned when `other` is made. Both
  // results.
  template <class Meets, class Other>
  std::pair<std::int32_t, std::int32_t> between(const Meets& meets, const Other& other) {
    std::atomic<bool> has_met{false}, go_on{false};
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "write_back.failed") != 0 || has_met.exchange(true)) return;
      wait_until([&] { return go_on.load(); });
    });
    std::int32_t met = 0;
    std::thread first([&] { met = meets(); });
    wait_until([&] { return has_met.load(); });
    EXPECT_TRUE(has_met);
    const std::int32_t others = other();
    go_on = true;
    first.join();
    return {met, others};
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, told_once, ::testing::ValuesIn(settings_of_one_page_size()),
                         name_of_setting);

TEST_P(told_once, by_the_sync_that_met_it) {
  std::string content = create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  session other(fs(), GetParam().kind);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  fail(operation::write, ENOSPC, 1);
  const auto [met, others] =
      between([&] { return calls().sync(fd); }, [&] { return other.sync(fd); });
  EXPECT_EQ(met, -ENOSPC);
  EXPECT_EQ(others, 0) << "it wrote all there was";
  expect_same_bytes(files->content("a"), content.replace(5, 4, "some"), "a");
  EXPECT_EQ(calls().sync(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(told_once, by_the_msync_that_met_it) {
  std::string content = create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  session other(fs(), GetParam().kind);
  const map_answer m = calls().map_write(fd, 0, 100);
  ASSERT_EQ(m.result, 100);
  EXPECT_EQ(calls().poke(m.pointer + 5, "some"), 4);
  fail(operation::write, EDQUOT, 1);
  const auto [met, others] =
      between([&] { return calls().msync(fd, m.pointer, 100); }, [&] { return other.sync(fd); });
  EXPECT_EQ(met, -EDQUOT);
  EXPECT_EQ(others, 0) << "it wrote all there was";
  expect_same_bytes(files->content("a"), content.replace(5, 4, "some"), "a");
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 100), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(told_once, by_the_last_close_whose_bytes_are_written_by_who_opened_it_meanwhile) {
  for (const int flags : {O_RDWR, O_WRONLY}) {
    std::string content = create("a", 3 * page_bytes());
    const std::int32_t fd = open("a", O_RDWR);
    session other(fs(), GetParam().kind);
    ASSERT_EQ(calls().write(fd, "some", 5), 4);
    fail(operation::write, ENOSPC, 1);
    const auto [met, again] = between([&] { return calls().close(fd); },
                                      [&] {
                                        const std::int32_t opened =
                                            other.open(files->path("a"), flags);
                                        EXPECT_EQ(other.write(opened, "more", 20), 4);
                                        return opened;
                                      });
    EXPECT_EQ(met, -ENOSPC);
    ASSERT_GE(again, 0);
    EXPECT_EQ(calls().sync(again), 0);
    expect_same_bytes(files->content("a"), content.replace(5, 4, "some").replace(20, 4, "more"),
                      "a");
    EXPECT_EQ(calls().close(again), 0);
    io->clear();
  }
}

TEST_P(told_once, by_the_last_close_for_which_an_open_waits) {
  const std::string content = create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  session other(fs(), GetParam().kind);
  fail(operation::write, ENOSPC);
  std::atomic<bool> leaves{false}, has_opened{false}, go_on{false};
  const schedule_hook hook([&](const char* name) {
    if (std::strcmp(name, "file.leave") != 0 || leaves.exchange(true)) return;
    wait_until([&] { return go_on.load(); });
  });
  std::thread closes([&] { EXPECT_EQ(calls().close(fd), -ENOSPC); });
  wait_until([&] { return leaves.load(); });
  std::int32_t again = -1;
  std::thread opens([&] {
    again = other.open(files->path("a"), O_RDWR);
    has_opened = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_opened) << "what it writes would be given up with the rest";
  go_on = true;
  closes.join();
  opens.join();
  io->clear();
  ASSERT_GE(again, 0);
  expect_same_bytes(files->content("a"), content, "a");
  calls().expect_read(again, content, 0, content.size());
  EXPECT_EQ(calls().write(again, "more", 20), 4);
  EXPECT_EQ(calls().close(again), 0);
  expect_same_bytes(files->content("a"), std::string(content).replace(20, 4, "more"), "a");
}

// A group opens the file with O_TRUNC while another group's bytes are dirty, and the truncation
// fails. The other group closes meanwhile; so the close of the failed open is the last one.
TEST_P(told_once, by_the_open_that_fails_to_empty_a_file_and_gives_its_bytes_up) {
  for (const int write_error : {ENOSPC, 0}) {
    const std::string content = create("a", 100);
    const std::int32_t fd = open("a", O_WRONLY);
    session other(fs(), GetParam().kind);
    ASSERT_EQ(calls().write(fd, "bytes", 0), 5);
    if (write_error != 0) fail(operation::write, write_error);
    std::atomic<bool> empties{false}, go_on{false};
    fault cut;
    cut.on = operation::truncate;
    cut.error_number = EROFS;
    cut.before = [&] {
      empties = true;
      wait_until([&] { return go_on.load(); });
    };
    io->add(cut);
    std::int32_t opened = 0;
    std::thread opens([&] { opened = other.open(files->path("a"), O_WRONLY | O_TRUNC); });
    wait_until([&] { return empties.load(); });
    EXPECT_EQ(calls().close(fd), 0) << "another may write the file";
    go_on = true;
    opens.join();
    io->clear();
    EXPECT_EQ(opened, write_error != 0 ? -write_error : -EROFS);
    expect_content("a", write_error != 0 ? content : "bytes" + content.substr(5));
  }
}

}  // namespace
}  // namespace gpufs::testing

// An error of a write-back is for the call that met it, and for no other that goes on meanwhile.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

class told_once : public conformance {
 protected:
  // `meets` is a call that has met an error, and has not returned when `other` is made. Both results.
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
INSTANTIATE_TEST_SUITE_P(conformance, told_once, ::testing::ValuesIn(settings_of_one_page_size()), name_of_setting);

TEST_P(told_once, by_the_sync_that_met_it) {
  std::string content = create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  session other(fs(), GetParam().kind);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  fail(operation::write, ENOSPC, 1);
  const auto [met, others] = between([&] { return calls().sync(fd); }, [&] { return other.sync(fd); });
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
  const auto [met, others] = between([&] { return calls().msync(fd, m.pointer, 100); }, [&] { return other.sync(fd); });
  EXPECT_EQ(met, -EDQUOT);
  EXPECT_EQ(others, 0) << "it wrote all there was";
  expect_same_bytes(files->content("a"), content.replace(5, 4, "some"), "a");
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 100), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

}  // namespace
}  // namespace gpufs::testing

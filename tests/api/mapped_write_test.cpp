// What is stored through a mapping while a cleaner writes the page back.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

class mapped_write_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, mapped_write_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

// A cleaner has read a byte that a write changed, and stands before it tells the mapping's twin of
// that. Then the old byte is stored: the copy has the same value still.
TEST_P(mapped_write_test, a_byte_stored_back_beside_a_write_back_reaches_the_file) {
  for (const bool maps_late : {false, true}) {
    const std::string name = maps_late ? "late" : "early";
    const std::string content = create(name, page_bytes());
    const std::int32_t fd = open(name, O_RDWR);
    const std::string old = content.substr(100, 1), other(1, static_cast<char>(old[0] ^ 1));
    session mapper(fs(), GetParam().kind), cleaner(fs(), GetParam().kind);
    map_answer m{};
    const auto map = [&] {
      m = mapper.map_write(fd, 0, page_bytes());
      ASSERT_EQ(m.result, static_cast<std::int64_t>(page_bytes()));
    };
    if (!maps_late) map();
    ASSERT_EQ(calls().write(fd, other, 100), 1);
    std::atomic<bool> stands{false}, go_on{false};
    std::thread slow;
    {
      const schedule_hook hook([&](const char* point) {
        if (std::strcmp(point, "write_back.read") != 0 || stands.exchange(true)) return;
        wait_until([&] { return go_on.load(); });
      });
      slow = std::thread([&] { EXPECT_EQ(cleaner.sync(fd), 0); });
      wait_until([&] { return stands.load(); });
      ASSERT_TRUE(stands);
      if (maps_late) map();
      EXPECT_EQ(mapper.poke(m.pointer + 100, old), 1);
      EXPECT_EQ(mapper.unmap_write(fd, m.pointer, page_bytes()), 0);
      go_on = true;
      slow.join();
    }
    EXPECT_EQ(calls().sync(fd), 0);
    expect_same_bytes(files->content(name), content, "the file");
    EXPECT_EQ(calls().close(fd), 0);
    expect_same_bytes(files->content(name), content, "the file that was closed");
  }
}

// A cleaner has pinned the copy for a moment when the last mapping ends, so the copy stays in the
// cache. What is written afterwards is not in it.
TEST_P(mapped_write_test, a_copy_that_outlived_its_mapping_is_not_used_again) {
  const std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  session mapper(fs(), GetParam().kind), cleaner(fs(), GetParam().kind);
  const std::string first(1, static_cast<char>(content[100] ^ 1)),
      second(1, static_cast<char>(content[100] ^ 2));
  const auto map = [&] {
    const map_answer m = mapper.map_write(fd, 0, page_bytes());
    EXPECT_EQ(m.result, static_cast<std::int64_t>(page_bytes()));
    return m;
  };
  map_answer m = map();
  ASSERT_EQ(calls().write(fd, first, 100), 1);
  std::atomic<bool> stands{false}, go_on{false};
  std::thread slow;
  {
    const schedule_hook hook([&](const char* point) {
      if (std::strcmp(point, "twin.change") != 0 || stands.exchange(true)) return;
      wait_until([&] { return go_on.load(); });
    });
    slow = std::thread([&] { EXPECT_EQ(cleaner.sync(fd), 0); });
    wait_until([&] { return stands.load(); });
    ASSERT_TRUE(stands);
    EXPECT_EQ(mapper.unmap_write(fd, m.pointer, page_bytes()), 0);
    go_on = true;
    slow.join();
  }
  ASSERT_EQ(calls().write(fd, second, 100), 1);
  EXPECT_EQ(calls().sync(fd), 0);
  m = map();
  EXPECT_EQ(mapper.poke(m.pointer + 100, first), 1);
  EXPECT_EQ(mapper.unmap_write(fd, m.pointer, page_bytes()), 0);
  EXPECT_EQ(calls().sync(fd), 0);
  std::string expected = content;
  expected.replace(100, 1, first);
  expect_same_bytes(files->content("a"), expected, "the file");
  EXPECT_EQ(calls().close(fd), 0);
}

}  // namespace
}  // namespace gpufs::testing

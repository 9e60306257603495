// Opens with O_TRUNC: each file is emptied once in a launch.
#include <errno.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

class truncating_open : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, truncating_open, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

// Each call of a session is a launch.
TEST_P(truncating_open, o_trunc_empties_a_file_in_each_launch) {
  create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR | O_TRUNC);
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, "", 0, 100);
  ASSERT_EQ(calls().write(fd, "hello", 0), 5);
  EXPECT_EQ(open("a", O_RDWR | O_TRUNC), fd) << "it is open";
  calls().expect_read(fd, "", 0, 100);
  ASSERT_EQ(calls().write(fd, "you", 0), 3);
  const std::int32_t other = open("a", O_WRONLY | O_TRUNC);
  ASSERT_GE(other, 0);
  EXPECT_NE(other, fd);
  calls().expect_read(fd, "", 0, 100);
  ASSERT_EQ(calls().write(other, "all", 0), 3);
  for (const std::int32_t d : {fd, fd, other}) EXPECT_EQ(calls().close(d), 0);
  expect_content("a", "all");
}

TEST_P(truncating_open, o_trunc_empties_a_file_once_in_a_launch) {
  create("a", 3 * page_bytes());
  constexpr int first = 0, again = 1;
  std::string input;
  const auto open_it = [&](int to, int flags) {
    device_call c{action::open};
    c.to = to;
    c.flags = flags;
    c.memory = add_string(input, files->path("a"));
    return c;
  };
  const auto write_it = [&](int from, std::int64_t at, const std::string& bytes) {
    device_call c{action::write};
    c.from = from;
    c.offset = at;
    c.bytes = bytes.size();
    c.memory = add_string(input, bytes);
    return c;
  };
  const auto close_it = [](int from) {
    device_call c{action::close};
    c.from = from;
    return c;
  };
  const script calls_of_a_launch{open_it(first, O_RDWR | O_TRUNC),
                                 write_it(first, 0, "one "),
                                 close_it(first),
                                 open_it(first, O_RDWR | O_TRUNC),
                                 write_it(first, 4, "two "),
                                 open_it(again, O_WRONLY | O_TRUNC),
                                 write_it(again, 8, "three"),
                                 close_it(again),
                                 close_it(first),
                                 open_it(again, O_WRONLY | O_TRUNC),
                                 close_it(again)};
  for (int round = 0; round < 2; ++round) {
    files->write_at("a", 0, std::string(page_bytes() + 100, '?'));
    const performance p = stage(fs(), GetParam().kind, 1).run({calls_of_a_launch}, input, 0);
    for (const outcome& o : p.outcomes[0]) EXPECT_GE(o.result, 0);
    expect_content("a", "one two three");
  }
}

// The mount has it open, and knows of no bytes in it.
TEST_P(truncating_open,
       o_trunc_empties_a_file_that_another_program_has_written_since_it_was_opened) {
  const std::int32_t fd = open("a", O_RDWR | O_CREAT);
  ASSERT_GE(fd, 0);
  for (const int flags : {O_RDWR | O_CREAT | O_TRUNC, O_WRONLY | O_TRUNC}) {
    files->write("a", "written by another program");
    const std::int32_t other = open("a", flags);
    ASSERT_GE(other, 0);
    ASSERT_EQ(calls().write(other, "new", 0), 3);
    EXPECT_EQ(calls().sync(other), 0);
    expect_content("a", "new");
    EXPECT_EQ(calls().truncate(other, 0), 0);
    EXPECT_EQ(calls().close(other), 0);
  }
  EXPECT_EQ(calls().close(fd), 0);
}

// The open that fails has not emptied it, so the next one of the launch does.
TEST_P(truncating_open, o_trunc_that_fails_is_tried_again) {
  create("a", 3 * page_bytes());
  fail(operation::truncate, EIO, 1);
  std::string input;
  device_call open_it{action::open};
  open_it.flags = O_RDWR | O_TRUNC;
  open_it.memory = add_string(input, files->path("a"));
  const performance p =
      stage(fs(), GetParam().kind, 1)
          .run({{open_it, open_it, {action::close}, open_it, {action::close}}}, input, 0);
  EXPECT_EQ(p.outcomes[0][0].result, -EIO);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_GE(p.outcomes[0][i].result, 0);
  expect_content("a", "");
}

// Many groups open one output, truncating it, and write: nobody's bytes are thrown away by who
// opened it first.
TEST_P(truncating_open, truncating_opens_of_many_groups_are_one) {
  create("a", 3 * page_bytes());
  constexpr std::uint32_t groups = 12;
  const random_delays delays(GetParam().page_bytes);
  stage s(fs(), GetParam().kind, groups);
  for (int round = 0; round < 5; ++round) {
    std::string input, expected;
    const std::uint64_t path = add_string(input, files->path("a"));
    std::vector<script> scripts(groups);
    for (std::uint32_t g = 0; g < groups; ++g) {
      const std::string bytes(50, static_cast<char>('a' + g));
      device_call open{action::open}, write{action::write};
      open.memory = path;
      open.bytes = 0644;
      open.flags = O_WRONLY | O_CREAT | O_TRUNC;
      write.bytes = bytes.size();
      write.offset = static_cast<std::int64_t>(g * bytes.size());
      write.memory = add_string(input, bytes);
      scripts[g] = {open, write};
      expected += bytes;
    }
    for (const std::vector<outcome>& of_group : s.run(scripts, input, 16).outcomes) {
      EXPECT_GE(of_group[0].result, 0);
      EXPECT_EQ(of_group[1].result, 50);
    }
    // All hold it until everybody has opened it: who closes last and who opens then would empty it
    // again.
    for (const std::vector<outcome>& of_group :
         s.run(std::vector<script>(groups, script{{action::close}}), {}, 16).outcomes)
      EXPECT_EQ(of_group[0].result, 0);
    expect_content("a", expected);
  }
}

}  // namespace
}  // namespace gpufs::testing

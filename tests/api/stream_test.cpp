// Streams: lines, tokens, formatted text and positions, by groups of every kind.
#include <errno.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class stream_test : public conformance {
 protected:
  std::int32_t open_new(const std::string& content, int flags = O_RDONLY,
                        const std::string& name = "a") {
    files->write(name, content);
    const std::int32_t fd = open(name, flags);
    EXPECT_GE(fd, 0);
    return fd;
  }
  void expect_pieces(action what, std::int32_t fd, std::int64_t offset, std::uint64_t buffer_bytes,
                     const std::string& wanted, std::int64_t end) {
    const stream_answer got = calls().stream(what, fd, offset, buffer_bytes, wanted.size() + 100);
    EXPECT_EQ(got.result, 0) << "buffer of " << buffer_bytes;
    EXPECT_EQ(got.position, end) << "buffer of " << buffer_bytes;
    expect_same_bytes(
        got.output, wanted,
        "from " + std::to_string(offset) + ", buffer of " + std::to_string(buffer_bytes));
  }
  static std::string formatted(const std::string& text, int number) {
    std::array<char, 500> line{};
    std::snprintf(line.data(), line.size(), "%s|%*d|%.3f\n", text.c_str(), number, number,
                  number / 8.0);
    return line.data();
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, stream_test,
                         ::testing::ValuesIn(settings({source::posix, source::memory},
                                                      {512, 4096})),
                         name_of_setting);

// As script.hpp's action writes them, of a stream whose text can have `room` bytes.
std::string lines_of(const std::string& content, std::uint64_t room) {
  std::string all;
  for (std::size_t at = 0; at < content.size();) {
    const std::size_t newline = content.find('\n', at);
    const std::size_t bytes = std::min(newline, content.size()) - at;
    if (bytes >= room) {
      all += content.substr(at, room) + '~';
      at += room;
    } else {
      all += content.substr(at, bytes) + '$';
      at += bytes + 1;
    }
  }
  return all;
}
std::string tokens_of(const std::string& content, std::uint64_t room) {
  std::string all;
  for (std::size_t at = content.find_first_not_of(" ,\n"); at < content.size();
       at = content.find_first_not_of(" ,\n", at)) {
    const std::size_t bytes = std::min(content.find_first_of(" ,\n", at), content.size()) - at;
    const bool cut = bytes >= room;
    const std::size_t taken = cut ? room - 1 : bytes;  // one is left for the next call
    all += content.substr(at, taken) + (cut ? '~' : '$');
    at += taken;
  }
  return all;
}

TEST_P(stream_test, lines_come_one_by_one) {
  const std::string content = "one\n\nthree\r\nfour, and no newline";
  const auto end = static_cast<std::int64_t>(content.size());
  const std::int32_t fd = open_new(content);
  expect_pieces(action::lines, fd, 0, 100, "one$$three\r$four, and no newline$", end);
  expect_pieces(action::lines, fd, 2, 100, "e$$three\r$four, and no newline$", end);
  expect_pieces(action::tokens, fd, 2, 100, "e$three\r$four$and$no$newline$", end);
  expect_pieces(action::lines, fd, end, 100, "", end);
  expect_pieces(action::lines, fd, 1000, 100, "", 1000);
}

TEST_P(stream_test, a_file_that_is_empty_or_only_newlines) {
  expect_pieces(action::lines, open_new(""), 0, 100, "", 0);
  expect_pieces(action::tokens, open_new(""), 0, 100, "", 0);
  const std::int32_t fd = open_new("\n\n\n", O_RDONLY, "newlines");
  for (const std::uint64_t buffer_bytes : {1, 2, 100}) {
    expect_pieces(action::lines, fd, 0, buffer_bytes, "$$$", 3);
    expect_pieces(action::tokens, fd, 0, buffer_bytes, "", 3);
  }
}

TEST_P(stream_test, lines_longer_than_the_buffer_are_cut) {
  const std::int32_t fd = open_new("12345678\n1234567\nabcdefghijklmnopqrst\nz");
  expect_pieces(action::lines, fd, 0, 8, "12345678~$1234567$abcdefgh~ijklmnop~qrst$z$", 39);
  expect_pieces(action::lines, fd, 0, 1, lines_of("12345678\n1234567\nabcdefghijklmnopqrst\nz", 1),
                39);
}

TEST_P(stream_test, a_token_that_is_cut_is_never_taken_for_a_whole_one) {
  const std::int32_t fd = open_new("abcd efgh abcdefgh ijkl");
  expect_pieces(action::tokens, fd, 0, 4, "abc~d$efg~h$abc~def~gh$ijk~l$", 23);
  expect_pieces(action::tokens, fd, 0, 5, "abcd$efgh$abcd~efgh$ijkl$", 23);
  EXPECT_EQ(calls().stream(action::tokens, fd, 0, 1).result, -EINVAL)
      << "there is room for no byte and the next";
}

TEST_P(stream_test, random_text_in_buffers_of_any_size) {
  std::mt19937_64 random(1);
  std::string content;
  while (content.size() < 3 * page_bytes() + 100) {
    content += std::string(random() % 5 == 0 ? random() % 700 : random() % 40,
                           static_cast<char>('a' + random() % 26));
    content += " ,\n\n"[random() % 4];
  }
  const std::int32_t fd = open_new(content);
  for (const std::uint64_t buffer_bytes : {7, 64, 511, 512, 600, 2000, 20000}) {
    const std::uint64_t room = buffer_bytes < 512 ? buffer_bytes : buffer_bytes - 15;
    const std::uint64_t from = random() % 1000;
    const auto end = static_cast<std::int64_t>(content.size());
    const std::string rest = content.substr(from);
    expect_pieces(action::lines, fd, static_cast<std::int64_t>(from), buffer_bytes,
                  lines_of(rest, room), end);
    expect_pieces(action::tokens, fd, static_cast<std::int64_t>(from), buffer_bytes,
                  tokens_of(rest, room), end);
  }
}

TEST_P(stream_test, a_line_that_cannot_be_read_is_an_error_and_those_before_it_are_not) {
  std::string content(8 * page_bytes() + 8192, 'x');  // more than comes with the open
  content[9] = '\n';
  const std::int32_t fd = open_new(content);
  calls().expect_read(fd, content, 0, page_bytes());
  fail(operation::read, EIO);
  const stream_answer got = calls().stream(action::lines, fd, 0, 2 * page_bytes());
  EXPECT_EQ(got.result, -EIO);
  EXPECT_EQ(got.position, 10);
  EXPECT_EQ(got.output, "xxxxxxxxx$");
}

TEST_P(stream_test, what_is_no_descriptor_or_no_buffer) {
  EXPECT_EQ(calls().stream(action::lines, 12345, 0, 100).result, -EBADF);
  const std::int32_t fd = open_new("abc\n", O_RDWR);
  EXPECT_EQ(calls().stream(action::lines, fd, 0, 0).result, -EINVAL);
  EXPECT_EQ(calls().stream(action::tokens, fd, 0, 0).result, -EINVAL);
  EXPECT_EQ(calls().print(fd, 0, 0, "", 1).result, -EOVERFLOW);
  EXPECT_EQ(calls().print(open("a"), 0, 100, "", 1).result, -EBADF) << "it only reads";
  EXPECT_EQ(calls().stream(action::lines, open("a", O_WRONLY), 0, 100).result, -EBADF)
      << "it only writes";
}

TEST_P(stream_test, formatted_text_is_written_at_the_position) {
  const std::int32_t fd = open_new("0123456789", O_RDWR);
  const std::string line = formatted("text", 12);
  const stream_answer got = calls().print(fd, 3, 100, "text", 12);
  EXPECT_EQ(got.result, static_cast<std::int64_t>(line.size()));
  EXPECT_EQ(got.position, 3 + static_cast<std::int64_t>(line.size()));
  EXPECT_EQ(calls().close(fd), 0);
  expect_same_bytes(files->content("a"), "012" + line, "a");
}

TEST_P(stream_test, text_that_does_not_fit_and_a_wrong_format_write_nothing) {
  const std::int32_t fd = open_new("0123456789", O_RDWR);
  const std::string line = formatted("text", 12);
  EXPECT_EQ(calls().print(fd, 0, line.size(), "text", 12).result, -EOVERFLOW);
  EXPECT_EQ(calls().print(fd, 0, 100, "text", -1).result, -EINVAL);
  EXPECT_EQ(calls().print(fd, 4, line.size() + 1, "text", 12).result,
            static_cast<std::int64_t>(line.size()));
  EXPECT_EQ(calls().close(fd), 0);
  expect_same_bytes(files->content("a"), "0123" + line, "a");
}

TEST_P(stream_test, a_write_is_seen_by_the_lines_that_follow) {
  const std::int32_t fd = open_new("abcd\nefgh\nijkl\n", O_RDWR);
  const stream_answer got = calls().stream(action::edit, fd, 0, 100);
  EXPECT_EQ(got.result, 1) << "of the second line only its newline is left";
  EXPECT_EQ(got.position, 10);
  EXPECT_EQ(calls().close(fd), 0);
  expect_same_bytes(files->content("a"), "abcd\nabcd\nijkl\n", "a");
  // Without a newline in the way: the second line was in the buffer when its first bytes were
  // changed.
  const std::int32_t longer = open_new("ab\nefgh\n", O_RDWR, "b");
  const stream_answer rest = calls().stream(action::edit, longer, 0, 100);
  EXPECT_EQ(rest.output, "gh");
  EXPECT_EQ(rest.position, 8);
}

TEST_P(stream_test, positions) {
  const std::int32_t fd = open_new("0123456789");
  const auto expect_byte = [&](std::int64_t from, std::int64_t offset, int whence, char wanted,
                               std::int64_t position) {
    const stream_answer got = calls().seek(fd, from, offset, whence);
    EXPECT_EQ(got.result, 1);
    EXPECT_EQ(got.output, std::string(1, wanted));
    EXPECT_EQ(got.position, position);
  };
  expect_byte(5, 3, SEEK_SET, '3', 4);
  expect_byte(5, 3, SEEK_CUR, '8', 9);
  expect_byte(5, -5, SEEK_CUR, '0', 1);
  expect_byte(5, -1, SEEK_END, '9', 10);
  EXPECT_EQ(calls().seek(fd, 5, 100, SEEK_END).result, 0);
  EXPECT_EQ(calls().seek(fd, 5, 100, SEEK_END).position, 110);
  EXPECT_EQ(calls().seek(fd, 5, -6, SEEK_CUR).result, -EINVAL);
  EXPECT_EQ(calls().seek(fd, 5, -6, SEEK_CUR).position, 5);
  EXPECT_EQ(calls().seek(fd, 5, -11, SEEK_END).result, -EINVAL);
  EXPECT_EQ(calls().seek(fd, 5, 0, 77).result, -EINVAL);
  EXPECT_EQ(calls().seek(fd, 5, INT64_MAX, SEEK_CUR).result, -EOVERFLOW);
  EXPECT_EQ(calls().seek(12345, 0, 0, SEEK_SET).result, -EBADF);
}

TEST_P(stream_test, appends_of_many_groups_land_whole) {
  constexpr std::uint32_t groups = 24;
  constexpr std::uint32_t prints = 20;
  const std::int32_t fd = open_new("first line\n", O_WRONLY | O_APPEND);
  std::multiset<std::string> wanted{"first line"};
  std::string input;
  std::vector<script> scripts(groups);
  constexpr std::uint64_t buffer_bytes = 256;
  for (std::uint32_t g = 0; g < groups; ++g) {
    device_call set;
    set.offset = fd;
    scripts[g].push_back(set);
    for (std::uint32_t i = 0; i < prints; ++i) {
      const std::string text =
          "group " + std::to_string(g) + std::string((g * 7 + i * 13) % 100, '.');
      device_call c{action::print};
      c.flags = buffer_bytes;
      c.memory = g * buffer_bytes;
      c.bytes = add_string(input, text);
      c.to = static_cast<std::int32_t>(i);
      scripts[g].push_back(c);
      const std::string line = formatted(text, c.to);
      wanted.insert(line.substr(0, line.size() - 1));
    }
  }
  stage all(fs(), GetParam().kind, groups);
  const performance played = all.run(scripts, input, groups * buffer_bytes);
  for (const std::vector<outcome>& outcomes : played.outcomes) {
    for (std::size_t i = 1; i < outcomes.size(); ++i) {
      EXPECT_GT(outcomes[i].result, 0);
      EXPECT_EQ(outcomes[i].value, 0) << "an append does not move the position";
    }
  }
  EXPECT_EQ(calls().close(fd), 0);
  std::multiset<std::string> got;
  std::istringstream content(files->content("a"));
  for (std::string line; std::getline(content, line);) got.insert(line);
  EXPECT_EQ(got, wanted);
}

}  // namespace
}  // namespace gpufs::testing

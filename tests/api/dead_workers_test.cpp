// Workers of the host die while they serve a program that writes: its calls say so, what was not
// written stays dirty as long as somebody can write it, and without the last worker everything
// ends, unmounting too.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

// A caller that waits for its timeout takes longer.
constexpr std::uint64_t soon_ns = 20'000'000'000, timeout_ns = 5 * soon_ns;

class dead_workers : public conformance {
 protected:
  dead_workers() { options.request_timeout = std::chrono::nanoseconds(timeout_ns); }
  void kill(operation on, std::uint64_t nth = 1) {
    fault death;
    death.on = on;
    death.nth = nth;
    death.worker_death = true;
    io->add(death);
  }
  template <class Call>
  std::int64_t ends_soon(const Call& call) {
    const std::uint64_t start = platform::now_ns();
    const std::int64_t result = call();
    EXPECT_LT(platform::now_ns() - start, soon_ns);
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, dead_workers,
                         ::testing::ValuesIn(settings({source::memory}, {4096, 65536})),
                         name_of_setting);

TEST_P(dead_workers, leave_what_was_not_written_to_the_others) {
  for (const bool openers : {false, true}) {
    options.workers = openers ? 4 : 3;
    std::string content = create("a", 6 * page_bytes());
    const std::int32_t fd = open("a", O_RDWR);
    ASSERT_GE(fd, 0);
    for (unsigned death = 1; death < options.workers; ++death) {
      const operation on = death == 1   ? operation::write
                           : death == 2 ? operation::sync
                                        : operation::truncate;
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, "death " + std::to_string(death));
      const std::string part = self_checking(5, death, 0, 2 * page_bytes() + 11);
      const std::uint64_t at = death * page_bytes() - 5;
      ASSERT_EQ(calls().write(fd, part, static_cast<std::int64_t>(at)),
                static_cast<std::int64_t>(part.size()));
      content.replace(at, part.size(), part);
      kill(on);
      const auto size = static_cast<std::int64_t>(content.size());
      EXPECT_EQ(ends_soon([&] {
                  return on == operation::truncate ? calls().truncate(fd, size) : calls().sync(fd);
                }),
                -EIO);
      io->clear();
      calls().expect_read(fd, content, 0, content.size() + 1);
      // What a sync that failed has lost is not known, so the file says so up to its last close.
      EXPECT_EQ(ends_soon([&] { return calls().sync(fd); }), death >= 2 ? -EIO : 0);
      expect_same_bytes(files->content("a"), content, "a");
    }
    EXPECT_EQ(ends_soon([&] { return calls().close(fd); }), -EIO);
    expect_same_bytes(files->content("a"), content, "a");
    EXPECT_EQ(ends_soon([&] { return unmount(), 0; }), 0);
  }
}

// A page leaves for want of frames, and the worker dies that writes it: all is written in the end,
// but somebody is to know.
TEST_P(dead_workers, are_told_of_once_when_nobody_asked) {
  options.cache_bytes = 16 * page_bytes();
  const std::int32_t fd = open("new", O_RDWR | O_CREAT);
  kill(operation::write);
  const std::string content = self_checking(6, 0, 0, 40 * page_bytes());
  ASSERT_EQ(calls().write(fd, content, 0), static_cast<std::int64_t>(content.size()));
  ASSERT_EQ(io->strikes(), 1u);
  EXPECT_EQ(calls().sync(fd), -EIO);
  expect_same_bytes(files->content("new"), content, "new");
  EXPECT_EQ(calls().sync(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(dead_workers, without_the_last_one_every_call_ends_and_the_close_tells) {
  options.workers = 1;
  for (const operation on : {operation::write, operation::truncate, operation::sync}) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                       "dies in " + std::to_string(static_cast<int>(on)));
    const std::string content = create("a", 4 * page_bytes());
    const std::int32_t fd = open("a", O_RDWR), other = open("a", O_WRONLY);
    ASSERT_GE(fd, 0);
    ASSERT_GE(other, 0);
    ASSERT_EQ(calls().write(fd, "some", 5), 4);
    kill(on);
    const auto size = static_cast<std::int64_t>(content.size()) / 2;
    EXPECT_EQ(ends_soon([&] {
                return on == operation::truncate ? calls().truncate(fd, size) : calls().sync(fd);
              }),
              -EIO);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(ends_soon([&] { return calls().sync(fd); }), -EIO);
      EXPECT_EQ(ends_soon([&] { return calls().truncate(fd, size); }), -EIO);
      EXPECT_EQ(ends_soon([&] {
                  return calls().read(fd, 2 * static_cast<std::int64_t>(page_bytes()), 5).result;
                }),
                -EIO);
      EXPECT_EQ(ends_soon([&] { return open("none", O_WRONLY | O_CREAT); }), -EIO);
      EXPECT_EQ(ends_soon([&] { return calls().unlink(files->path("a")); }), -EIO);
    }
    // In the cache already.
    EXPECT_EQ(ends_soon([&] { return calls().write(fd, "more", 9); }), 4);
    EXPECT_EQ(calls().read(fd, 5, 8).bytes, "somemore");
    // The last holder is told that the file has not all. The end of the mount writes it.
    EXPECT_EQ(ends_soon([&] { return calls().close(other); }), -EIO);
    EXPECT_EQ(ends_soon([&] { return calls().close(fd); }), -EIO);
    EXPECT_EQ(calls().sync(fd), -EBADF);
    io->clear();
    EXPECT_EQ(ends_soon([&] { return unmount(), 0; }), 0);
    expect_same_bytes(files->content("a"), std::string(content).replace(5, 8, "somemore"), "a");
  }
}

// All groups write and sync files of their own while the workers die one after the other.
TEST_P(dead_workers, lose_nothing_of_which_a_sync_was_answered) {
  options.workers = 4;
  options.cache_bytes = 48 * page_bytes();
  constexpr std::uint32_t groups = 8;
  constexpr int rounds = 12;
  for (const std::uint64_t nth : {5, 17, 29, 41}) kill(operation::write, nth);
  auto s = std::make_unique<stage>(fs(), GetParam().kind, groups);
  std::string input;
  std::vector<script> scripts(groups);
  std::vector<std::vector<std::string>> parts(groups);
  for (std::uint32_t g = 0; g < groups; ++g) {
    device_call opens{action::open};
    opens.memory = add_string(input, files->path("own-" + std::to_string(g)));
    opens.flags = O_RDWR | O_CREAT;
    opens.bytes = 0644;
    scripts[g].push_back(opens);
    for (int i = 0; i < rounds; ++i) {
      const std::string& part =
          parts[g].emplace_back(page_bytes() / 2 + 100, static_cast<char>('a' + i));
      device_call write{action::write};
      write.offset = static_cast<std::int64_t>(i * part.size());
      write.bytes = part.size();
      write.memory = input.size();
      input += part;
      scripts[g].push_back(write);
      scripts[g].push_back({action::sync});
    }
    scripts[g].push_back({action::close});
  }
  performance p;
  EXPECT_EQ(ends_soon([&] { return p = s->run(scripts, input, 16), 0; }), 0);
  EXPECT_GE(io->strikes(), 4u);
  unsigned told = 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    const std::vector<outcome>& results = p.outcomes[g];
    const std::string name = "own-" + std::to_string(g);
    if (results[0].result < 0) continue;
    const std::string after = files->content(name);
    std::size_t at = 0;
    for (std::size_t i = 0; i < rounds; ++i) {
      const std::string& part = parts[g][i];
      const std::int64_t wrote = results[1 + 2 * i].result, synced = results[2 + 2 * i].result;
      EXPECT_TRUE(wrote == -EIO || (wrote > 0 && wrote <= static_cast<std::int64_t>(part.size())))
          << wrote;
      EXPECT_TRUE(synced == 0 || synced == -EIO) << synced;
      if (synced != 0) ++told;
      // A later sync or the close that went well is of all that was written before.
      bool is_synced = results.back().result == 0;
      for (std::size_t k = i; k < rounds; ++k)
        is_synced = is_synced || results[2 + 2 * k].result == 0;
      const std::string there = at < after.size() ? after.substr(at, part.size()) : std::string();
      const std::size_t whole = wrote < 0 ? 0 : static_cast<std::size_t>(wrote);
      if (is_synced)
        expect_same_bytes(there.substr(0, whole), part.substr(0, whole),
                          name + " " + std::to_string(i));
      for (const char c : there) ASSERT_TRUE(c == part[0] || c == '\0') << name << " " << i;
      at += part.size();
    }
    EXPECT_LE(after.size(), at);
    const std::int64_t closed = results.back().result;
    EXPECT_TRUE(closed == 0 || closed == -EIO) << closed;
  }
  EXPECT_GE(told, 4u);
  s.reset();
  EXPECT_EQ(ends_soon([&] { return unmount(), 0; }), 0);
}

}  // namespace
}  // namespace gpufs::testing

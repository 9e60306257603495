// Close-to-open consistency: what was written before an open is seen after it, unless the file was
// still open here; and what a reader may see of a file that changes under it.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class consistency_test : public conformance {
 protected:
  // Opens, compares the whole file, and closes.
  void expect_at_next_open(const std::string& name, const std::string& content) {
    const std::int32_t fd = open(name);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(calls().status(fd).status.size, content.size());
    calls().expect_read(fd, content, 0, content.size() + 10);
    EXPECT_EQ(calls().close(fd), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, consistency_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

// Settling takes seconds with files of the host, so they take part once.
class unchanged_file_test : public consistency_test {};
INSTANTIATE_TEST_SUITE_P(conformance, unchanged_file_test,
                         ::testing::ValuesIn(settings({source::memory}, {512, 4096, 65536})),
                         name_of_setting);
INSTANTIATE_TEST_SUITE_P(conformance_on_host, unchanged_file_test, ::testing::Values(setting{}),
                         name_of_setting);

TEST_P(unchanged_file_test, a_file_that_stayed_the_same_stays_cached) {
  const std::string content = create("a", 3 * page_bytes() + 9000);
  const std::string small = create("small", 1000);
  files->settle();
  expect_at_next_open("a", content);
  expect_at_next_open("small", small);
  const statistics before = fs().stats();
  expect_at_next_open("a", content);
  expect_at_next_open("small", small);
  const statistics after = fs().stats();
  EXPECT_EQ(after[counter::staged_loads], before[counter::staged_loads]);
  EXPECT_EQ(after[counter::open_loads], before[counter::open_loads]);
  EXPECT_EQ(after[counter::opens] - before[counter::opens], 2u);
  EXPECT_GT(after[counter::hits], before[counter::hits]);
}

TEST_P(consistency_test, a_file_rewritten_while_closed_is_read_anew) {
  for (const std::uint64_t bytes : {std::uint64_t{1000}, 3 * page_bytes() + 9000}) {
    const std::string name = std::to_string(bytes);
    for (unsigned generation = 0; generation < 5; ++generation) {
      const std::string content = create(name, bytes, generation);
      expect_at_next_open(name, content);
    }
  }
}

TEST_P(consistency_test, one_changed_byte_is_seen) {
  std::string content = create("a", 3 * page_bytes() + 9000);
  expect_at_next_open("a", content);
  content[2 * page_bytes() + 5] = 'x';
  files->write_at("a", 2 * page_bytes() + 5, "x");
  expect_at_next_open("a", content);
}

TEST_P(consistency_test, a_file_that_shrank_or_grew_while_closed_has_its_new_size) {
  std::string content = create("a", 3 * page_bytes() + 9000);
  expect_at_next_open("a", content);
  for (const std::uint64_t size : {2 * page_bytes() + 10, 5 * page_bytes(), std::uint64_t{7},
                                   std::uint64_t{0}, page_bytes() + 1}) {
    files->truncate("a", size);
    content.resize(size, '\0');
    expect_at_next_open("a", content);
  }
}

TEST_P(consistency_test, a_file_replaced_by_another_is_the_other) {
  expect_at_next_open("a", create("a", 3 * page_bytes() + 9000));
  const std::string other = self_checking(9, 0, 0, 3 * page_bytes() + 9000);
  files->replace("a", other);
  expect_at_next_open("a", other);
  files->remove("a");
  EXPECT_EQ(open("a"), -ENOENT);
  expect_at_next_open("a", create("a", 100, 4));
}

TEST_P(consistency_test, an_open_of_an_open_file_sees_it_as_it_was_opened) {
  const std::string content = create("a", 1000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  const std::string longer = create("a", 2000, 1);
  ASSERT_EQ(open("a"), fd);
  EXPECT_EQ(calls().status(fd).status.size, 1000u);
  calls().expect_read(fd, content, 0, 1000);  // its pages came with the open
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
  expect_at_next_open("a", longer);
}

TEST_P(consistency_test, an_open_of_an_open_path_gives_the_file_though_another_is_there_now) {
  const std::string content = create("a", 1000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  const std::string other = self_checking(9, 0, 0, 1000);
  files->replace("a", other);
  ASSERT_EQ(open("a"), fd);
  calls().expect_read(fd, content, 0, 1000);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
  expect_at_next_open("a", other);
}

TEST_P(consistency_test, two_versions_of_a_file_do_not_mix) {
  const std::string old = create("a", 3 * page_bytes() + 9000, 0);
  files->make_link("link", "a");
  const std::int32_t before = open("a");
  ASSERT_GE(before, 0);
  calls().expect_read(before, old, 0, old.size());
  const std::string fresh = create("a", 4 * page_bytes() + 9000, 1);
  const std::int32_t after = open("link");
  ASSERT_GE(after, 0);
  calls().expect_read(after, fresh, 0, fresh.size());
  calls().expect_read(before, old, 0, old.size());  // still cached, under its own version
  EXPECT_EQ(calls().status(before).status.size, old.size());
  EXPECT_EQ(calls().status(after).status.size, fresh.size());
}

TEST_P(consistency_test, an_open_file_that_was_removed_can_be_read_on) {
  const std::string content = create("a", 3 * page_bytes() + 9000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  files->remove("a");
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_GE(open("a"), 0) << "it is open here, so no name is looked up";
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(open("a"), -ENOENT);
}

// With frames for all warps of the device, the warps of a block read several pages at once.
TEST_P(consistency_test, reads_behind_a_truncation_are_short_in_a_large_cache_too) {
  options.cache_bytes = large_cache_frames() * page_bytes();
  const std::string content = create("a", 40 * page_bytes() + 9000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  const auto page = static_cast<std::int64_t>(page_bytes());
  calls().expect_read(fd, content, 50, 21 * page_bytes());
  calls().expect_read(fd, content, 3 * page + 7, 36 * page_bytes());
  files->truncate("a", 20 * page_bytes() + 100);
  ASSERT_EQ(calls().close(fd), 0);
  const std::int32_t cut = open("a");
  files->truncate("a", 10 * page_bytes() + 100);
  for (int i = 0; i < 2; ++i) {  // loaded, then cached
    EXPECT_EQ(calls().read(cut, 2 * page + 5, 15 * page_bytes()).bytes,
              content.substr(2 * page_bytes() + 5, 8 * page_bytes() + 95));
    EXPECT_EQ(calls().read(cut, 10 * page + 100, 3 * page_bytes()).result, 0);
  }
}

TEST_P(consistency_test, reads_behind_a_truncation_are_short) {
  const std::string content = create("a", 6 * page_bytes() + 9000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, static_cast<std::int64_t>(4 * page_bytes()),
                      10);  // this page is cached
  files->truncate("a", 2 * page_bytes() + 100);
  const auto page = static_cast<std::int64_t>(page_bytes());
  EXPECT_EQ(calls().read(fd, 2 * page + 50, 1000).bytes, content.substr(2 * page_bytes() + 50, 50));
  EXPECT_EQ(calls().read(fd, page, 5 * page_bytes()).bytes,
            content.substr(page_bytes(), page_bytes() + 100));
  EXPECT_EQ(calls().read(fd, 2 * page + 100, 10).result, 0);
  EXPECT_EQ(calls().read(fd, 3 * page, 10).result, 0);
  EXPECT_EQ(calls().map(fd, 3 * page, 10).result, 0);
  EXPECT_EQ(calls().map(fd, 2 * page + 90, 100).result, 10);
  calls().expect_read(fd, content, 4 * page,
                      10);  // old bytes, as promised: no other than the file had
  EXPECT_EQ(calls().view(fd, static_cast<std::uint64_t>(5 * page), 1).error, -EINVAL);
}

// Readers while the host truncates and extends the file: each byte is the file's or zero, and
// nobody is killed.
void read_while_truncated(mount& m, group_kind kind, file_world& files, const std::string& content,
                          std::int32_t fd) {
  std::atomic<bool> done{false};
  std::thread truncater([&] {
    for (std::uint64_t i = 0; !done; ++i) {
      files.truncate("a", i % 2 == 0 ? content.size() / 3 + i * 97 % 1000 : content.size());
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  constexpr std::uint32_t groups = 8;
  stage s(m, kind, groups);
  for (int round = 0; round < 10; ++round) {
    std::vector<script> scripts;
    std::uint64_t output_bytes = 0;
    for (std::uint32_t g = 0; g < groups; ++g) {
      device_call set{action::set};
      set.offset = fd;
      scripts.push_back({set});
      for (std::uint64_t i = 0; i < 10; ++i) {
        device_call read{action::read};
        read.bytes = 5000;
        read.offset = static_cast<std::int64_t>((g * 10 + i) * 7919 % (content.size() - 5000));
        read.memory = output_bytes;
        output_bytes += read.bytes;
        scripts.back().push_back(read);
      }
    }
    const performance p = s.run(scripts, {}, output_bytes);
    for (std::uint32_t g = 0; g < groups; ++g) {
      for (std::size_t i = 1; i < scripts[g].size(); ++i) {
        const std::int64_t result = p.outcomes[g][i].result;
        EXPECT_TRUE(result >= 0 && result <= 5000)
            << result;  // not an assertion: the truncater is to be joined
        for (std::uint64_t k = 0; k < static_cast<std::uint64_t>(result); ++k) {
          const char byte = p.output[scripts[g][i].memory + k];
          const char expected = content[static_cast<std::uint64_t>(scripts[g][i].offset) + k];
          if (byte == 0 || byte == expected) continue;
          ADD_FAILURE() << "a byte that the file never had, at " << scripts[g][i].offset << " + "
                        << k;
          break;
        }
      }
    }
  }
  done = true;
  truncater.join();
}

TEST_P(consistency_test, truncation_under_readers_kills_nobody) {
  options.cache_bytes = 8 * page_bytes();
  const std::string content = create("a", 20 * page_bytes() + 20000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  read_while_truncated(fs(), GetParam().kind, *files, content, fd);
}

class direct_consistency_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, direct_consistency_test,
                         ::testing::ValuesIn(settings({source::posix}, {512, 4096, 65536})),
                         name_of_setting);

TEST_P(direct_consistency_test, truncation_under_readers_of_the_direct_path_kills_nobody) {
  options.cache_bytes = 8 * page_bytes();
  options.extent_budget_bytes = std::uint64_t{64} << 20;
  if (fs().direct_path() != "on") GTEST_SKIP() << "no direct path: " << fs().direct_path();
  const std::string content = create("a", 20 * page_bytes() + 20000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  // Registered before anything is truncated: an extent of a file that has changed since its open
  // would be refused.
  for (std::uint64_t at = 0; at < content.size(); at += options.extent_bytes)
    EXPECT_EQ(calls().read(fd, static_cast<std::int64_t>(at), 1).result, 1);
  const std::uint64_t extents = (content.size() + options.extent_bytes - 1) / options.extent_bytes;
  wait_until([&] { return fs().stats().extents_registered == extents; });
  ASSERT_EQ(fs().stats().extents_registered, extents);
  read_while_truncated(fs(), GetParam().kind, *files, content, fd);
  EXPECT_GT(counted(counter::direct_loads), 0u);
}

TEST_P(direct_consistency_test, a_file_changed_while_closed_is_read_anew) {
  options.extent_budget_bytes = std::uint64_t{64} << 20;
  if (fs().direct_path() != "on") GTEST_SKIP() << "no direct path: " << fs().direct_path();
  for (unsigned generation = 0; generation < 5; ++generation) {
    const std::string content = self_checking(7, generation, 0, 65536 + 20000);
    // Rewritten in place, an extent of an old version would show the new bytes; of a replaced file
    // it shows the old ones.
    if (generation % 2 == 0) files->write("a", content);
    else files->replace("a", content);
    const std::int32_t fd = open("a");
    ASSERT_GE(fd, 0);
    const std::uint64_t before = fs().stats().extents_registered;
    EXPECT_EQ(calls().read(fd, 0, 1).result, 1);
    wait_until([&] { return fs().stats().extents_registered > before; });
    calls().expect_read(fd, content, 0, content.size());
    EXPECT_EQ(calls().close(fd), 0);
  }
}

}  // namespace
}  // namespace gpufs::testing

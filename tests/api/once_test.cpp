// O_GWRONCE beside other descriptors of the file: after a gfsync or the last gclose, all of them
// see what was written through it, also in pages that they had cached before.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

constexpr int once = O_WRONLY | O_GWRONCE;

class once_test : public conformance {
 protected:
  std::int64_t page(std::uint64_t number) const {
    return static_cast<std::int64_t>(number * page_bytes());
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, once_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(once_test, bytes_past_the_end_of_a_cached_page_are_seen_after_the_close) {
  std::string content = create("a", page_bytes() + page_bytes() / 4);
  const std::int32_t fd = open("a", O_RDWR);
  // The rest of the page is cached, too: as zeros.
  calls().expect_read(fd, content, page(1), page_bytes() / 4);
  const std::int32_t writer = open("a", once);
  const std::string more(page_bytes() + 100, 'n');
  EXPECT_EQ(calls().write(writer, more, static_cast<std::int64_t>(content.size())),
            static_cast<std::int64_t>(more.size()));
  content += more;
  EXPECT_EQ(calls().close(writer), 0);
  expect_content("a", content);
  const std::int32_t later = open("a", O_RDONLY);
  calls().expect_read(later, content, 0, content.size());
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().close(later), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(once_test, bytes_in_cached_pages_are_seen_after_the_sync) {
  std::string content = create("a", 4 * page_bytes() + 50);
  const std::int32_t fd = open("a", O_RDWR), writer = open("a", once);
  calls().expect_read(fd, content, 0, content.size());
  const auto write = [&](std::int32_t to, const std::string& bytes, std::uint64_t at) {
    EXPECT_EQ(calls().write(to, bytes, static_cast<std::int64_t>(at)),
              static_cast<std::int64_t>(bytes.size()));
    content.replace(at, bytes.size(), bytes);
  };
  write(fd, "ours", page_bytes() + 20);  // dirty in the page that both write
  write(writer, "parts", page_bytes() - 2);
  write(writer, std::string(page_bytes(), 'w'), 2 * page_bytes());
  write(writer, "end", 4 * page_bytes() + 30);
  EXPECT_EQ(calls().sync(writer), 0);
  calls().expect_read(fd, content, 0, content.size());
  expect_content("a", content);
  // Once more in pages that are there already.
  write(writer, "again", 3 * page_bytes() - 2 + page_bytes());
  write(fd, "theirs", page_bytes() + 40);
  EXPECT_EQ(calls().close(writer), 0);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

TEST_P(once_test, bytes_in_a_page_that_is_mapped_for_writing_are_seen_in_the_mapping) {
  std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR), writer = open("a", once);
  const map_answer m = calls().map_write(fd, 0, 100);
  ASSERT_EQ(m.result, 100);
  EXPECT_EQ(calls().poke(m.pointer + 5, "mine"), 4);
  EXPECT_EQ(calls().write(writer, "once", 50), 4);
  EXPECT_EQ(calls().close(writer), 0);
  EXPECT_EQ(calls().peek(m.pointer + 50, 4), "once");
  EXPECT_EQ(calls().msync(fd, m.pointer, 100), 0);
  content.replace(5, 4, "mine").replace(50, 4, "once");
  expect_content("a", content);
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 100), 0);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().close(fd), 0);
}

// The file has them, so the mapping has not changed them, and another program's bytes stay.
TEST_P(once_test, bytes_in_a_page_that_is_mapped_for_writing_are_written_once) {
  std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR), writer = open("a", once);
  const map_answer m = calls().map_write(fd, 0, 200);
  ASSERT_EQ(m.result, 200);
  EXPECT_EQ(calls().write(writer, "once", 50), 4);
  EXPECT_EQ(calls().sync(writer), 0);
  files->write_at("a", 50, "else");
  EXPECT_EQ(calls().poke(m.pointer + 150, "mine"), 4);
  EXPECT_EQ(calls().msync(fd, m.pointer, 200), 0);
  content.replace(50, 4, "else").replace(150, 4, "mine");
  expect_content("a", content);
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 200), 0);
  EXPECT_EQ(calls().close(writer), 0);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

// The host has read the page for the reader before it writes the bytes, and the reader gives the
// page to other groups afterwards.
TEST_P(once_test, bytes_in_a_page_that_is_being_loaded_are_seen_after_the_close) {
  if (device() != device_kind::cpu) GTEST_SKIP() << "device code has no schedule points";
  std::string content = create("a", 4 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR), writer = open("a", once);
  session reader(fs(), GetParam().kind), other(fs(), GetParam().kind);
  std::atomic<bool> has_read{false}, go_on{false}, closed{false};
  const schedule_hook hook([&](const char* name) {
    if (std::strcmp(name, "cache.publish") != 0 || has_read.exchange(true)) return;
    wait_until([&] { return go_on.load(); });
  });
  std::thread reads([&] { EXPECT_EQ(reader.read(fd, page(1), 10).result, 10); });
  wait_until([&] { return has_read.load(); });
  const std::string bytes(2 * page_bytes() - 10, 'w');
  EXPECT_EQ(calls().write(writer, bytes, page(1) + 5), static_cast<std::int64_t>(bytes.size()));
  content.replace(page_bytes() + 5, bytes.size(), bytes);
  std::thread closes([&] {
    EXPECT_EQ(other.close(writer), 0);
    closed = true;
  });
  wait_until([&] { return closed.load(); }, std::chrono::milliseconds(30));
  EXPECT_FALSE(closed) << "the reader may still give others what the page had before";
  go_on = true;
  reads.join();
  closes.join();
  expect_content("a", content);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().close(fd), 0);
}

class random_once : public ::testing::TestWithParam<std::uint64_t> {};

// Several groups write the file, each bytes of its own. Readers, which read bytes that no group
// writes, cache and evict its pages.
TEST_P(random_once, what_a_group_synced_is_what_it_reads) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                     "GPUFS_TEST_SEED=" + std::to_string(GetParam()));
  std::mt19937_64 random(GetParam());
  constexpr std::uint64_t page_bytes = 512, pages = 12, writers = 2, piece_bytes = 40, gap = 4;
  constexpr std::uint64_t pieces = pages * page_bytes / (writers * piece_bytes);
  const auto files = file_world::make(source::memory);
  files->write("a", std::string(pages * page_bytes / 2, '\0'));
  mount_options options = base_options();
  options.page_bytes = page_bytes;
  options.cache_bytes = (16 + random() % 64) * page_bytes;
  options.backend = files->io();
  mount fs(options);
  session calls(fs, group_kind::thread);
  const std::int32_t fd = calls.open(files->path("a"), O_RDWR),
                     writer = calls.open(files->path("a"), once);
  ASSERT_GE(fd, 0);
  ASSERT_GE(writer, 0);
  std::atomic<bool> done{false};
  const auto write_own = [&](std::uint64_t own, std::uint64_t seed) {
    session group(fs, group_kind::thread);
    std::mt19937_64 choice(seed);
    for (std::uint64_t n = 0; n < pieces && !::testing::Test::HasFailure(); ++n) {
      const auto at = static_cast<std::int64_t>((n * writers + own) * piece_bytes);
      const std::string bytes(1 + choice() % (piece_bytes - gap), static_cast<char>('a' + n % 26));
      const auto size = static_cast<std::int64_t>(bytes.size());
      EXPECT_EQ(group.write(writer, bytes, at), size);
      if (choice() % 2 == 0) {
        EXPECT_EQ(group.advise(writer, at, bytes.size(), POSIX_FADV_DONTNEED), 0);
      }
      EXPECT_EQ(group.sync(writer), 0);
      EXPECT_EQ(group.read(fd, at, bytes.size()).bytes, bytes) << "at " << at;
    }
  };
  const auto read_any = [&](std::uint64_t seed) {
    session group(fs, group_kind::thread);
    std::mt19937_64 choice(seed);
    while (!done) {
      const std::uint64_t at = choice() % (pieces * writers) * piece_bytes + piece_bytes - gap;
      EXPECT_GE(group.read(fd, static_cast<std::int64_t>(at), gap).result, 0);
    }
  };
  {
    const random_delays delays(random());
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) threads.emplace_back([&, seed = random()] { read_any(seed); });
    for (std::uint64_t own = 0; own < writers; ++own)
      threads.emplace_back([&, own, seed = random()] { write_own(own, seed); });
    while (threads.size() > 2) {
      threads.back().join();
      threads.pop_back();
    }
    done = true;
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(calls.close(writer), 0);
  const std::string content = files->content("a");
  calls.expect_read(fd, content, 0, content.size() + 1);
  EXPECT_EQ(calls.close(fd), 0);
}
INSTANTIATE_TEST_SUITE_P(seed, random_once, ::testing::ValuesIn(seeds()));

}  // namespace
}  // namespace gpufs::testing

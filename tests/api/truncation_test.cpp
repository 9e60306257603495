// gftruncate beside groups that write and sync: each takes place before the other or after it.
// Afterwards the cache and the file agree, and what a gfsync said to be in the file is there,
// unless a later truncation has cut it.
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

class truncation_test : public conformance {
 protected:
  // What readers of the mount see is what the file has, and as much.
  void expect_agreement(std::int32_t fd, const std::string& name) {
    ASSERT_EQ(calls().sync(fd), 0);
    const std::string there = files->content(name);
    ASSERT_EQ(calls().status(fd).status.size, there.size());
    const read_answer seen = calls().read(fd, 0, there.size() + 1);
    ASSERT_EQ(seen.result, static_cast<std::int64_t>(there.size()));
    expect_same_bytes(seen.bytes, there, "the cache, beside the file");
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, truncation_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

// Another group writes past the new size and syncs while the host is asked to truncate, at each of
// its calls.
TEST_P(truncation_test, beside_a_write_and_its_sync_is_before_or_after_both) {
  const std::string record = self_checking(3, 1, 0, 100);
  for (const std::uint64_t pages : {1, 9}) {  // a cut, and a file that grows
    for (std::uint64_t call = 1; call <= 2; ++call) {
      const ::testing::ScopedTrace trace(
          __FILE__, __LINE__, std::to_string(pages) + " pages, call " + std::to_string(call));
      const std::string content = create("a", 5 * page_bytes());
      const std::int32_t fd = open("a", O_RDWR);
      const std::uint64_t size = pages * page_bytes(), at = size + 10;
      session other(fs(), GetParam().kind);
      std::atomic<bool> has_synced{false};
      std::thread writer;
      fault during;
      during.on = operation::truncate;
      during.nth = call;
      during.before = [&] {
        writer = std::thread([&] {
          EXPECT_EQ(other.write(fd, record, static_cast<std::int64_t>(at)), 100);
          EXPECT_EQ(other.sync(fd), 0);
          has_synced = true;
        });
        // It may wait for the truncation.
        wait_until([&] { return has_synced.load(); }, std::chrono::milliseconds(30));
      };
      io->add(during);
      EXPECT_EQ(calls().truncate(fd, static_cast<std::int64_t>(size)), 0);
      if (writer.joinable()) writer.join();
      io->clear();
      const std::string now = files->content("a");
      if (has_synced && now.size() != size) {
        ASSERT_EQ(now.size(), at + record.size());
        expect_same_bytes(now.substr(at), record, "the record");
      } else {
        ASSERT_EQ(now.size(), size);
      }
      expect_agreement(fd, "a");
      EXPECT_EQ(calls().close(fd), 0);
    }
  }
}

// A write stands still after its bytes and before its marks, while another group truncates.
TEST_P(truncation_test, before_the_marks_of_a_write_leaves_it_whole_or_cuts_it) {
  const std::string record = self_checking(3, 2, 0, 100);
  for (const bool dirty : {false, true}) {
    const std::string content = create("a", 5 * page_bytes());
    const std::int32_t fd = open("a", O_RDWR);
    const std::uint64_t size = 2 * page_bytes(), at = 3 * page_bytes() + 10;
    // So that the page is dirty, or resident and clean.
    if (dirty) {
      ASSERT_EQ(calls().write(fd, "x", static_cast<std::int64_t>(at)), 1);
    } else {
      calls().expect_read(fd, content, static_cast<std::int64_t>(at), 1);
    }
    session other(fs(), GetParam().kind);
    std::atomic<bool> stands{false}, go_on{false};
    std::thread writer;
    {
      const schedule_hook hook([&](const char* name) {
        if (std::strcmp(name, "write.mark") != 0 || stands.exchange(true)) return;
        wait_until([&] { return go_on.load(); });
      });
      writer = std::thread(
          [&] { EXPECT_EQ(other.write(fd, record, static_cast<std::int64_t>(at)), 100); });
      wait_until([&] { return stands.load(); });
      ASSERT_TRUE(stands);
      EXPECT_EQ(calls().truncate(fd, static_cast<std::int64_t>(size)), 0);
      go_on = true;
      writer.join();
    }
    expect_agreement(fd, "a");
    const std::string now = files->content("a");
    ASSERT_EQ(now.size(), at + record.size())
        << "it had not ended when the file was cut, and returned afterwards";
    expect_same_bytes(now.substr(at), record, "the record");
    expect_same_bytes(now.substr(size, at - size), std::string(at - size, 0), "between them");
    EXPECT_EQ(calls().close(fd), 0);
  }
}

// At random, with delays that widen the races.
TEST_P(truncation_test, and_writes_at_random_leave_cache_and_file_equal) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    const std::string name = "r" + std::to_string(seed);
    (void)create(name, 6 * page_bytes());
    const std::int32_t fd = open(name, O_RDWR);
    std::atomic<unsigned> last{0};
    {
      const random_delays delays(from_environment("GPUFS_TEST_SEED", 1) + seed);
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          std::mt19937_64 random(from_environment("GPUFS_TEST_SEED", 1) + seed * 10 + t);
          session own(fs(), GetParam().kind);
          for (unsigned i = 0; i < 25; ++i) {
            const std::uint64_t at = random() % (7 * page_bytes());
            if (t == 0) {
              EXPECT_EQ(own.truncate(fd, static_cast<std::int64_t>(at)), 0);
            } else {
              const std::string part = self_checking(t, i, 0, 1 + random() % (2 * page_bytes()));
              EXPECT_EQ(own.write(fd, part, static_cast<std::int64_t>(at)),
                        static_cast<std::int64_t>(part.size()));
              if (random() % 3 == 0) {
                EXPECT_EQ(own.sync(fd), 0);
              }
            }
          }
        });
      }
      for (std::thread& t : threads) t.join();
    }
    expect_agreement(fd, name);
    EXPECT_EQ(calls().close(fd), 0);
  }
}

// An append has its place and its bytes, and not yet its marks, when another group cuts the file
// and then appends more than there was.
TEST_P(truncation_test, beside_an_append_leaves_every_record_whole_and_no_hole) {
  constexpr std::uint64_t record_bytes = 100, old_records = 10, new_records = 11;
  const auto record = [](unsigned number) { return self_checking(5, number, 0, record_bytes); };
  std::string content;
  for (unsigned i = 0; i < old_records; ++i) content += record(i);
  files->write("a", content);
  const std::int32_t fd = open("a", O_WRONLY | O_APPEND);
  session appender(fs(), GetParam().kind), cutter(fs(), GetParam().kind);
  std::atomic<bool> stands{false}, go_on{false}, is_over{false};
  std::thread slow, others;
  {
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "write.mark") != 0 || stands.exchange(true)) return;
      wait_until([&] { return go_on.load(); });
    });
    slow = std::thread(
        [&] { EXPECT_EQ(appender.write(fd, record(99), 0), std::int64_t{record_bytes}); });
    wait_until([&] { return stands.load(); });
    ASSERT_TRUE(stands);
    others = std::thread([&] {
      EXPECT_EQ(cutter.truncate(fd, 0), 0);
      for (unsigned i = 0; i < new_records; ++i)
        EXPECT_EQ(cutter.write(fd, record(20 + i), 0), std::int64_t{record_bytes});
      is_over = true;
    });
    // They may wait for the append.
    wait_until([&] { return is_over.load(); }, std::chrono::milliseconds(30));
    go_on = true;
    slow.join();
    others.join();
  }
  EXPECT_EQ(calls().sync(fd), 0);
  const std::string now = files->content("a");
  std::string expected;
  for (unsigned i = 0; i < new_records; ++i) expected += record(20 + i);
  const std::size_t late = now.find(record(99));
  if (late != std::string::npos) expected.insert(late, record(99));
  expect_same_bytes(now, expected, "all records");
  EXPECT_EQ(calls().close(fd), 0);
}

// Another group cuts the file between a gmsync's look at its size and its marks.
TEST_P(truncation_test, beside_a_gmsync_leaves_the_file_as_long_as_it_says) {
  const std::string content = create("a", 2 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const map_answer m = calls().map_write(fd, static_cast<std::int64_t>(page_bytes()), 100);
  ASSERT_EQ(m.result, 100);
  ASSERT_EQ(calls().poke(m.pointer, "stored"), 6);
  session other(fs(), GetParam().kind);
  std::atomic<bool> stands{false}, is_cut{false};
  std::thread cutter;
  {
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "map.mark") != 0 || stands.exchange(true)) return;
      cutter = std::thread([&] {
        EXPECT_EQ(other.truncate(fd, 10), 0);
        is_cut = true;
      });
      // It may wait for the gmsync.
      wait_until([&] { return is_cut.load(); }, std::chrono::milliseconds(30));
    });
    EXPECT_EQ(calls().msync(fd, m.pointer, 100), 0);
    ASSERT_TRUE(stands);
    cutter.join();
  }
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 100), 0);
  EXPECT_EQ(calls().sync(fd), 0);
  expect_same_bytes(files->content("a"), content.substr(0, 10), "the file that was cut");
  expect_agreement(fd, "a");
  EXPECT_EQ(calls().close(fd), 0);
}

}  // namespace
}  // namespace gpufs::testing

// Groups that lose every race, or wait for one that does not get an answer: their calls end all the
// same.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "api/matrix.hpp"
#include "support/bare_cache.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

// When a test whose call does not end lets it go.
class patience {
 public:
  bool is_over() const { return std::chrono::steady_clock::now() > end_; }

 private:
  const std::chrono::steady_clock::time_point end_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
};

struct load_nothing {
  std::int32_t operator()(char*) const { return 512; }
};

// Another group brings the page in just before this one, and evicts it before this one has found
// it. Its steps are made inside of this one's.
TEST(lost_races, a_page_that_is_always_evicted_first_ends_in_an_error) {
  bare_cache_options options;
  options.request_timeout_ns = 1'000'000'000;
  const bare_cache cache(options);
  const slot_key key = page_key{1, 5}.slot();
  const patience limit;
  bool is_other = false;
  std::uint32_t there = 0;
  const schedule_hook hook([&](const char* name) {
    if (is_other || limit.is_over()) return;
    is_other = true;
    if (std::strcmp(name, "index.insert") == 0) {
      const auto begun = begin_load(cache.index(), cache.rings(), key, 1);
      EXPECT_EQ(begun.what, hash_index<detail::frame_table>::begun::yes);
      there = begun.slot;
      cache.frames().header(there).state.publish();
      cache.frames().unpin(there);
    } else if (std::strcmp(name, "index.pin") == 0) {
      EXPECT_TRUE(cache.frames().claim_resident(there));
      cache.frames().header(there).state.release();
    }
    is_other = false;
  });
  page_cache<thread_group> pages(cache.ref(), thread_group(), 0);
  EXPECT_EQ(pages.acquire({1, 5}, load_nothing()).valid, -ENOBUFS);
  EXPECT_GT(cache.count(counter::lost_races), 1u);
}

// Whenever it is about to ask the host, another thread is first, and does not ask for the file to
// be created.
TEST(lost_races, an_open_that_others_fail_for_each_time_ends_in_an_error) {
  const patience limit;
  const auto files = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(files);
  std::atomic<unsigned> asked{0}, begun{0}, let_go{0};  // opens of the other thread
  std::atomic<bool> is_inside{false}, is_done{false};
  fault hold;
  hold.on = operation::open;
  hold.before = [&] {
    const unsigned number = ++begun;
    wait_until([&] { return let_go >= number || is_done || limit.is_over(); });
  };
  io->add(hold);
  mount_options options = base_options();
  options.backend = io;
  options.workers = 3;
  options.request_timeout = std::chrono::seconds(3);
  mount fs(options);
  session other(fs, group_kind::thread), creator(fs, group_kind::thread);
  std::thread others([&] {
    for (unsigned done = 0; !is_done;) {
      if (asked == done) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_LT(other.open("new", O_RDWR), 0);
      ++done;
    }
  });
  std::int32_t result = 0;
  {
    const schedule_hook hook([&](const char* name) {
      if (limit.is_over()) return;
      if (std::strcmp(name, "index.insert") == 0 && !is_inside.exchange(true)) {
        const unsigned next = ++asked;
        wait_until([&] { return begun >= next || limit.is_over(); });
        is_inside = false;
      } else if (std::strcmp(name, "index.pin") == 0 && !is_inside) {
        let_go = asked.load();
      }
    });
    result = creator.open("new", O_RDWR | O_CREAT);
  }
  is_done = true;
  others.join();
  EXPECT_EQ(result, -EIO);
  EXPECT_FALSE(files->exists("new"));
}

// The last writer's write-back gets no answer, and an open waits for that writer to leave.
TEST(lost_races, an_open_waits_no_longer_than_the_last_writer_for_the_host) {
  const auto files = std::make_shared<memory_backend>();
  files->write("a", "content");
  const auto io = std::make_shared<fault_backend>(files);
  std::atomic<bool> is_over{false};
  fault hang;
  hang.on = operation::write;
  hang.before = [&] { wait_until([&] { return is_over.load(); }); };
  mount_options options = base_options();
  options.backend = io;
  options.workers = 3;
  options.request_timeout = std::chrono::seconds(3);
  mount fs(options);
  session last(fs, group_kind::thread), next(fs, group_kind::thread);
  const std::int32_t fd = last.open("a", O_RDWR);
  ASSERT_EQ(last.write(fd, "bytes", 0), 5);
  io->add(hang);
  std::atomic<bool> is_leaving{false}, is_waiting{false};
  std::int32_t closed = 0, opened = 0;
  {
    const schedule_hook hook([&](const char* name) {
      if (std::strcmp(name, "file.leave") == 0) {
        is_leaving = true;
        wait_until([&] { return is_waiting.load(); });
      } else if (std::strcmp(name, "file.join") == 0) {
        is_waiting = true;
      }
    });
    std::thread leaves([&] { closed = last.close(fd); });
    wait_until([&] { return is_leaving.load(); });
    opened = next.open("a", O_RDWR);
    leaves.join();
  }
  is_over = true;
  EXPECT_TRUE(is_waiting) << "the open came too late";
  EXPECT_EQ(closed, -EIO);
  EXPECT_GE(opened, 0);
  (void)next.close(opened);
}

}  // namespace
}  // namespace gpufs::testing

// Closes of files that are open for writing, beside other requests for the same file.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "service/file_table.hpp"
#include "support/eventually.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

// Groups that ask for one close at the same time open the file as soon as theirs is answered: no
// open joins the writer that is leaving, and bytes that were lost are lost once.
TEST(file_close, all_closes_of_a_handle_return_when_it_is_closed_and_its_loss_told_once) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "a");
  file_table table(io, 64, 1024);
  constexpr std::uint64_t rounds = is_sanitized ? 3'000 : 30'000;
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  std::atomic<std::uint64_t> closed{0};
  std::barrier both(2);
  std::thread another([&] {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      both.arrive_and_wait();
      if (table.close(handle, -EIO) == 0) ++closed;
      both.arrive_and_wait();
    }
  });
  std::uint64_t joined = 0, told_otherwise = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    EXPECT_EQ(table.open_to_change("/a", {}, handle, file), 0);
    both.arrive_and_wait();
    if (table.close(handle, -EIO) == 0) ++closed;
    const file_error_list losses = table.errors().list();
    std::uint64_t next = 0;
    EXPECT_EQ(table.open_to_change("/a", {}, next, file), 0);
    both.arrive_and_wait();
    if (losses.errors.size() != 1 || losses.errors[0].count != round) ++told_otherwise;
    if (file->joined()) ++joined;
    EXPECT_EQ(table.close(next), 0);
  }
  another.join();
  EXPECT_EQ(closed, rounds);
  EXPECT_EQ(joined, 0u);
  EXPECT_EQ(told_otherwise, 0u);
}

TEST(file_close, a_writer_that_is_closed_before_it_is_reached_leaves_the_write_to_another) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "a");
  file_table table(io, 64, 1024);
  std::uint64_t stays = 0, leaves = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(table.open_to_change("/a", {}, stays, file), 0);
  ASSERT_EQ(table.open_to_change("/a", {}, leaves, file), 0);
  const std::uint64_t name = node_name(file->node(), file->version().number);
  ASSERT_EQ(table.find_writer(name), file);
  bool is_closed = false;
  const schedule_hook hook([&](const char* point) {
    if (is_closed || std::string_view(point) != "file_table.reach") return;
    is_closed = true;
    EXPECT_EQ(table.close(leaves), 0);
  });
  file_table::lookups known;
  file_table::lookups::entry* found = nullptr;
  ASSERT_EQ(table.look_up_writer(name, known, found), 0);
  EXPECT_TRUE(is_closed);
  EXPECT_EQ(found->file, table.find(stays));
  EXPECT_EQ(found->reached->write("b", 1, 0), 1);
}

// A write that outlived its file's close, and ends when an open has identified the file: the open
// must not go on with the size from before it.
TEST(file_close, an_open_beside_the_end_of_a_late_write_sees_what_it_wrote) {
  for (const bool writes : {true, false}) {
    for (const bool is_read_between : {false, true}) {
      // Opens for reading that saw the same file share a version, whatever changes it meanwhile.
      if (is_read_between && !writes) continue;
      const auto io = std::make_shared<memory_backend>();
      io->write("/a", "one");
      file_table table(io, 64, 4);
      std::uint64_t handle = 0;
      std::shared_ptr<host_file> file;
      ASSERT_EQ(table.open_to_change("/a", {}, handle, file), 0);
      auto late = std::make_unique<change_under_way>(file->version());
      EXPECT_EQ(table.close(handle), 0);
      if (is_read_between) {
        ASSERT_EQ(table.open("/a", false, handle, file), 0);
        EXPECT_EQ(table.close(handle), 0);
      }
      EXPECT_EQ(table.open_to_change("/a", {}, handle, file), -EBUSY);
      const schedule_hook hook([&](const char* point) {
        if (late == nullptr || std::string_view(point) != "files.identified") return;
        io->write_at("/a", 3, ", two");
        late.reset();
      });
      if (writes) ASSERT_EQ(table.open_to_change("/a", {}, handle, file), 0);
      else ASSERT_EQ(table.open("/a", false, handle, file), 0);
      EXPECT_EQ(late, nullptr);
      EXPECT_EQ(file->version().identity.size, std::string_view("one, two").size());
      EXPECT_EQ(table.close(handle), 0);
    }
  }
}

// A gclose has given up on its request, another program has changed the file, and groups open it
// again. The host closes the file before they are answered, so none of them gets the old version.
class open_beside_a_close : public ::testing::Test {
 protected:
  open_beside_a_close() {
    io_->write("/a", "old");
    written_ = rig_.open_to_write("/a");
  }
  rig_reply close_of_written() {
    return rig_.call({request_code::close_written, written_.handle, 0, 0});
  }
  void expect_new(const rig_reply& opened) {
    EXPECT_EQ(opened.result, 0);
    EXPECT_NE(opened.version, written_.version);
    EXPECT_EQ(opened.size, 10u);
  }

  static service_rig_options several_workers() {
    service_rig_options options;
    options.workers = 5;
    options.openers = false;
    return options;
  }
  const std::shared_ptr<memory_backend> io_ = std::make_shared<memory_backend>();
  service_rig rig_{io_, several_workers()};
  rig_reply written_;
};

TEST_F(open_beside_a_close, gets_no_version_whose_last_writer_left_while_it_joined) {
  constexpr int opens = 3;
  for (const bool reads : {true, false}) {
    std::atomic<int> standing{0};
    std::atomic<bool> go_on{false};
    std::vector<rig_reply> opened(opens);
    {
      const schedule_hook hook([&](const char* point) {
        if (std::string_view(point) != "service.joined" || go_on) return;
        ++standing;
        while (!go_on) std::this_thread::yield();
      });
      std::vector<std::thread> callers;
      for (rig_reply& o : opened)
        callers.emplace_back([&] { o = reads ? rig_.open("/a") : rig_.open_to_write("/a"); });
      EXPECT_TRUE(eventually([&] { return standing == opens; }));
      EXPECT_EQ(close_of_written().result, 0);
      io_->write("/a", "other text");
      go_on = true;
      for (std::thread& t : callers) t.join();
    }
    for (const rig_reply& o : opened) {
      expect_new(o);
      EXPECT_EQ(o.version, opened[0].version);
      EXPECT_EQ(rig_.close(o.handle).result, 0);
    }
    io_->write("/a", "old");
    written_ = rig_.open_to_write("/a");
  }
}

TEST_F(open_beside_a_close, waits_for_a_close_that_another_thread_has_begun) {
  io_->write("/a", "other text");
  std::atomic<bool> stands{false}, go_on{false};
  const schedule_hook hook([&](const char* point) {
    if (std::string_view(point) != "service.close" || stands.exchange(true)) return;
    while (!go_on) std::this_thread::yield();
  });
  std::thread closes([&] { EXPECT_EQ(close_of_written().result, 0); });
  EXPECT_TRUE(eventually([&] { return stands.load(); }));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go_on = true;
  });
  expect_new(rig_.open("/a"));
  expect_new(rig_.open_to_write("/a"));
  later.join();
  closes.join();
}

// Those who write it go on as one, whoever leaves first.
TEST_F(open_beside_a_close, joins_the_writers_that_stay) {
  const rig_reply other = rig_.open_to_write("/a");
  EXPECT_EQ(other.version, written_.version);
  io_->write("/a", "other text");
  EXPECT_EQ(close_of_written().result, 0);
  const rig_reply third = rig_.open_to_write("/a");
  EXPECT_EQ(third.version, other.version);
  EXPECT_EQ(rig_.close(other.handle).result, 0);
  EXPECT_EQ(rig_.open_to_write("/a").version, third.version);
}

}  // namespace
}  // namespace gpufs::testing

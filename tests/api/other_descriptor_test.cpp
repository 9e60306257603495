// Bytes that were written through the descriptor of another group, or of an open that came to
// nothing: who wrote them is told that they are lost.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "api/matrix.hpp"
#include "gpufs/error.hpp"
#include "support/eventually.hpp"
#include "support/hanging_server.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

// The path "alias" leads to "file", too, and so to a descriptor of its own.
class other_descriptor : public hanging_server {
 protected:
  other_descriptor() {
    memory_->write("file", "old\n");
    memory_->make_link("alias", "file");
    memory_->write("other", "other\n");
    options_.workers = 4;
    options_.backend = io_;
    mounted_ = std::make_unique<mount>(options_);
    calls_ = std::make_unique<session>(*mounted_, group_kind::thread);
    others_ = std::make_unique<session>(*mounted_, group_kind::thread);
    hurried_ = std::make_unique<session>(*mounted_, group_kind::thread, 400ms);
  }
  ~other_descriptor() override {
    goes_on_ = server_answers_ = true;
  }  // so that the mount's threads end

  // The next close of "alias", or report of one, fails.
  void refuse_at_close_of_alias() {
    io_->add({.on = operation::close, .path = "alias", .times_max = 1, .error_number = EDQUOT});
  }
  // The first thread at this point stands there until `goes_on_`.
  std::unique_ptr<schedule_hook> stand_at(std::string_view name) {
    return std::make_unique<schedule_hook>([this, name](const char* point) {
      if (point != name || stands_.exchange(true)) return;
      while (!goes_on_) std::this_thread::yield();
    });
  }
  // A group that syncs "file", which hangs.
  std::thread sync_that_hangs(mount& fs) {
    hang(operation::sync, "file");
    std::thread slow([&fs] {
      session own(fs, group_kind::thread);
      const std::int32_t fd = own.open("file", O_RDWR);
      EXPECT_EQ(own.write(fd, "x", 0), 1);
      EXPECT_EQ(own.sync(fd), 0);
      EXPECT_EQ(own.close(fd), 0);
    });
    EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
    return slow;
  }
  void expect_unmount_tells(int error_number) {
    calls_.reset(), others_.reset(), hurried_.reset();
    try {
      mounted_->unmount();
      ADD_FAILURE() << "bytes are lost";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), error_number);
    }
  }

  mount_options options_ = base_options();
  std::atomic<bool> stands_{false}, goes_on_{false};
  std::unique_ptr<mount> mounted_;
  std::unique_ptr<session> calls_, others_, hurried_;
};

TEST_F(other_descriptor, a_gclose_tells_of_bytes_that_went_through_another_groups) {
  const std::int32_t fd = calls_->open("file", O_RDWR), other = others_->open("alias", O_WRONLY);
  ASSERT_EQ(calls_->write(fd, "lost", 0), 4);
  refuse_at_close_of_alias();
  EXPECT_EQ(calls_->close(fd), -EDQUOT);
  EXPECT_EQ(others_->close(other), -EDQUOT) << "the file's, while it is being written";
  // It was those closes' error.
  const std::int32_t again = calls_->open("file", O_RDWR);
  ASSERT_EQ(calls_->write(again, "new", 0), 3);
  EXPECT_EQ(calls_->close(again), 0);
  expect_unmount_tells(EDQUOT);
}

// The last group of the file is told, although another one asked first.
TEST_F(other_descriptor, an_error_that_another_gclose_got_is_told_again) {
  const std::int32_t fd = calls_->open("file", O_RDWR), other = others_->open("alias", O_WRONLY);
  ASSERT_EQ(calls_->write(fd, "lost", 0), 4);
  ASSERT_EQ(calls_->advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);  // written, through "alias"
  refuse_at_close_of_alias();
  EXPECT_EQ(others_->close(other), -EDQUOT);
  EXPECT_EQ(calls_->sync(fd), -EDQUOT);
  EXPECT_EQ(calls_->close(fd), -EDQUOT);
}

TEST_F(other_descriptor, bytes_that_went_through_a_withdrawn_open_are_told_of) {
  const std::int32_t fd = calls_->open("file", O_RDWR);
  {
    const auto hook = stand_at("service.joined");
    EXPECT_EQ(hurried_->open("alias", O_WRONLY), -EIO);  // gives up
    ASSERT_TRUE(stands_);
    ASSERT_EQ(calls_->write(fd, "lost", 0), 4);
    ASSERT_EQ(calls_->advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    refuse_at_close_of_alias();
    goes_on_ = true;
    // The host closes the file that nobody waits for.
    ASSERT_TRUE(eventually([&] { return memory_->open_now() == 1; }));
  }
  EXPECT_EQ(calls_->sync(fd), -EDQUOT);
  EXPECT_EQ(calls_->close(fd), -EDQUOT);
  expect_unmount_tells(EDQUOT);
}

TEST_F(other_descriptor, bytes_that_went_through_a_failed_truncating_open_are_told_of) {
  const std::int32_t fd = calls_->open("file", O_RDWR);
  ASSERT_EQ(calls_->write(fd, "lost", 0), 4);
  io_->add({.on = operation::truncate, .times_max = 1, .error_number = ENOSPC});
  refuse_at_close_of_alias();
  {
    const schedule_hook hook([&](const char* point) {
      if (point != std::string_view("file.empty") || stands_.exchange(true)) return;
      std::thread([&] { EXPECT_EQ(calls_->advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0); }).join();
    });
    EXPECT_EQ(others_->open("alias", O_WRONLY | O_TRUNC), -EDQUOT) << "that of its close";
  }
  ASSERT_TRUE(stands_);
  EXPECT_EQ(calls_->sync(fd), -EDQUOT);
  EXPECT_EQ(calls_->close(fd), -EDQUOT);
}

// The open joins a writer that leaves, and hangs when it opens the file once more.
TEST_F(other_descriptor, an_open_that_hangs_holds_up_no_open_of_another_file) {
  const std::int32_t fd = calls_->open("file", O_RDWR);
  std::thread late;
  {
    const auto hook = stand_at("service.joined");
    late = std::thread([&] { EXPECT_EQ(hurried_->open("alias", O_WRONLY), -EIO); });
    ASSERT_TRUE(eventually([&] { return stands_.load(); }));
    ASSERT_EQ(calls_->close(fd), 0);
    hang(operation::identify, "alias");
    goes_on_ = true;
    ASSERT_TRUE(eventually([&] { return hanging_ != 0; }));
  }
  late.join();
  // It gets the inode state that the first open of "alias" had.
  const std::int32_t other = calls_->open("other", O_RDWR);
  EXPECT_GE(other, 0);
  EXPECT_GE(calls_->open("other", O_RDONLY), 0);
  EXPECT_GE(calls_->open("other", O_WRONLY), 0);
  server_answers_ = true;
}

TEST_F(other_descriptor, who_creates_a_file_exclusively_gets_it) {
  std::atomic<bool> is_made{false}, may_join{false};
  std::int32_t made = 0;
  {
    const schedule_hook hook([&](const char* point) {
      if (point == std::string_view("files.identified") && !is_made.exchange(true)) {
        while (!may_join) std::this_thread::yield();
      } else if (point == std::string_view("service.joined") && !stands_.exchange(true)) {
        while (!goes_on_) std::this_thread::yield();
      }
    });
    std::thread maker([&] { made = others_->open("lock", O_WRONLY | O_CREAT | O_EXCL); });
    EXPECT_TRUE(eventually([&] { return is_made.load(); }));
    const std::int32_t fd = calls_->open("lock", O_RDWR);
    EXPECT_GE(fd, 0);
    may_join = true;
    EXPECT_TRUE(eventually([&] { return stands_.load(); }));
    EXPECT_EQ(calls_->close(fd), 0);
    goes_on_ = true;
    maker.join();
  }
  EXPECT_GE(made, 0) << made;
  EXPECT_EQ(others_->write(made, "mine", 0), 4);
  EXPECT_EQ(others_->close(made), 0);
  EXPECT_EQ(memory_->content("lock"), "mine");
}

TEST_F(other_descriptor, a_gfsync_that_no_thread_began_loses_nothing) {
  options_.workers = 2;
  mount fs(options_);
  session calls(fs, group_kind::thread), hurried(fs, group_kind::thread, 400ms);
  std::thread slow = sync_that_hangs(fs);
  const std::int32_t fd = calls.open("other", O_RDWR);
  EXPECT_EQ(calls.write(fd, "y", 0), 1);
  EXPECT_EQ(hurried.sync(fd), -EIO);
  EXPECT_EQ(io_->calls(operation::sync), 1u) << "the other one's";
  server_answers_ = true;
  slow.join();
  EXPECT_EQ(calls.sync(fd), 0);
  EXPECT_EQ(calls.close(fd), 0);
  EXPECT_NO_THROW(fs.unmount());
}

// While syncs of another file take all threads but one.
TEST_F(other_descriptor, a_gclose_does_not_wait_for_syncs_of_other_files) {
  options_.workers = 2;
  mount fs(options_);
  session calls(fs, group_kind::thread);
  std::thread slow = sync_that_hangs(fs);
  const std::int32_t fd = calls.open("other", O_RDWR);
  EXPECT_EQ(calls.write(fd, "y", 0), 1);
  EXPECT_EQ(calls.close(fd), 0);
  EXPECT_FALSE(server_answers_);
  server_answers_ = true;
  slow.join();
}

TEST_F(other_descriptor, a_sync_that_is_interrupted_at_the_unmount_is_made_again) {
  const std::int32_t fd = calls_->open("file", O_RDWR);
  ASSERT_EQ(calls_->write(fd, "new", 0), 3);
  calls_.reset(), others_.reset(), hurried_.reset();
  io_->add({.on = operation::sync, .times_max = 1, .error_number = EINTR});
  EXPECT_NO_THROW(mounted_->unmount());
  EXPECT_EQ(io_->calls(operation::sync), 2u);
  EXPECT_EQ(memory_->content("file"), "new\n");
}

// Each descriptor's sync takes a moment, all together take longer than an unmount waits.
TEST_F(other_descriptor, a_sync_through_many_ends_with_the_service) {
  constexpr int count = 200;
  for (int i = 0; i < count; ++i) memory_->make_link("link" + std::to_string(i), "file");
  mount_options brief = options_;
  brief.unmount_timeout = 500ms;
  auto fs = std::make_unique<mount>(brief);
  {
    session calls(*fs, group_kind::thread), hurried(*fs, group_kind::thread, 100ms);
    std::int32_t fd = -1;
    for (int i = 0; i < count; ++i)
      ASSERT_GE(fd = calls.open("link" + std::to_string(i), O_WRONLY), 0);
    ASSERT_EQ(calls.write(fd, "new", 0), 3);
    io_->add({.on = operation::sync, .delay = 10ms});
    EXPECT_EQ(hurried.sync(fd), -EIO);
  }
  try {
    fs->unmount();
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EIO) << "of the sync that was given up";
  }
  fs.reset();
  EXPECT_EQ(memory_->open_now(), 0u);
  EXPECT_EQ(memory_->content("file"), "new\n");
}

}  // namespace
}  // namespace gpufs::testing

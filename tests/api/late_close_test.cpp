// Opens and closes that the host answers late, or not at all: no later open takes the host's file
// for one that is being written here, so each sees what other programs wrote meanwhile.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "api/matrix.hpp"
#include "support/eventually.hpp"
#include "support/hanging_server.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

constexpr unsigned workers = 4;  // and as many openers

class late_close : public hanging_server {
 protected:
  late_close() {
    memory_->write("file", "old\n");
    options_.workers = workers;
    options_.backend = io_;
  }
  ~late_close() override { server_answers_ = true; }  // so that the mount's threads end

  mount& fs() {
    if (mounted_ == nullptr) mounted_ = std::make_unique<mount>(options_);
    return *mounted_;
  }
  session& calls() {
    if (session_ == nullptr) session_ = std::make_unique<session>(fs(), group_kind::thread);
    return *session_;
  }

  // Its calls give up on a server that does not answer.
  session& hurried() {
    if (hurried_ == nullptr)
      hurried_ =
          std::make_unique<session>(fs(), group_kind::thread, std::chrono::milliseconds(400));
    return *hurried_;
  }
  void unmount() {
    session_.reset();
    hurried_.reset();
    fs().unmount();
  }

  // All threads of a kind are at requests that hang, and their callers have given up.
  void keep_openers_busy() {
    hang(operation::open, "dead");
    for (unsigned i = 0; hanging_ < static_cast<int>(workers); ++i) {
      ASSERT_LT(i, 10 * workers);
      ASSERT_EQ(hurried().open("dead", O_RDONLY), -EIO);
    }
  }
  // At a path each, because one that hangs makes its path busy, until its thread is done with it.
  void keep_workers_busy() {
    for (unsigned i = 0; hanging_ < static_cast<int>(workers); ++i) {
      ASSERT_LT(i, 10 * workers);
      const std::string path = "dead" + std::to_string(++dead_paths_);
      hang(operation::unlink, path);
      ASSERT_EQ(hurried().unlink(path), -EIO);
    }
  }
  std::int32_t open_and_append(const std::string& line) {
    const std::int32_t fd = calls().open("file", O_RDWR | O_APPEND);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(calls().write(fd, line, 0), static_cast<std::int64_t>(line.size()));
    EXPECT_EQ(calls().sync(fd), 0);
    return fd;
  }
  void append_as_another_program(const std::string& line) {
    memory_->write_at("file", memory_->content("file").size(), line);
  }
  void expect_at_next_open(const std::string& content) {
    const std::int32_t fd = calls().open("file");
    ASSERT_GE(fd, 0);
    EXPECT_EQ(calls().status(fd).status.size, content.size());
    calls().expect_read(fd, content, 0, content.size() + 10);
    EXPECT_EQ(calls().close(fd), 0);
  }

  mount_options options_ = base_options();
  unsigned dead_paths_ = 0;
  std::unique_ptr<mount> mounted_;
  std::unique_ptr<session> session_, hurried_;
};

TEST_F(late_close, of_a_written_file_needs_no_thread_that_opens) {
  const std::int32_t fd = open_and_append("gpu 1\n");
  keep_openers_busy();
  EXPECT_EQ(calls().close(fd), 0);
  append_as_another_program("cpu\n");
  EXPECT_EQ(calls().close(open_and_append("gpu 2\n")), 0);
  EXPECT_EQ(memory_->content("file"), "old\ngpu 1\ncpu\ngpu 2\n");
  answer();
}

TEST_F(late_close, is_an_error_of_gclose_and_the_next_open_sees_the_file_as_it_is) {
  const std::int32_t fd = open_and_append("gpu 1\n");
  keep_workers_busy();
  EXPECT_EQ(hurried().close(fd), -EIO);
  append_as_another_program("cpu\n");
  expect_at_next_open("old\ngpu 1\ncpu\n");
  answer();
  EXPECT_EQ(calls().close(open_and_append("gpu 2\n")), 0);
  EXPECT_EQ(memory_->content("file"), "old\ngpu 1\ncpu\ngpu 2\n");
}

// Each call that was given up keeps its slot of the channel until it is answered. So there is none
// for the close.
TEST_F(late_close, for_which_there_was_no_slot_of_the_channel_is_made_before_the_next_open) {
  options_.channel_slots = workers;
  const std::int32_t fd = open_and_append("gpu 1\n");
  keep_workers_busy();
  EXPECT_EQ(hurried().close(fd), -EIO);
  append_as_another_program("cpu\n");
  EXPECT_EQ(hurried().open("file"), -EIO) << "there is no slot for it";
  answer();
  expect_at_next_open("old\ngpu 1\ncpu\n");
  EXPECT_EQ(calls().close(open_and_append("gpu 2\n")), 0);
  EXPECT_EQ(memory_->content("file"), "old\ngpu 1\ncpu\ngpu 2\n");
}

// The same, for a close that reports the loss of bytes.
class late_close_with_a_loss : public late_close {
 protected:
  void SetUp() override {
    options_.channel_slots = workers + 2;
    options_.unmount_timeout = std::chrono::milliseconds(500);
    memory_->write("other", "other\n");
    const std::int32_t fd = calls().open("file", O_RDWR | O_APPEND);
    ASSERT_EQ(calls().write(fd, "lost\n", 0), 5);
    keep_workers_busy();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(hurried().unlink("dead"), -EIO);  // takes the other slots
    EXPECT_EQ(hurried().close(fd), -EIO);
    answer();
  }
  // Another group posts the close, and gets no answer.
  void post_the_close() {
    server_answers_ = false;
    keep_workers_busy();
    EXPECT_EQ(hurried().open("other"), -EIO);
    EXPECT_TRUE(fs().file_errors().errors.empty());
  }
  void expect_one_loss(bool at_unmount) {
    const file_error_list list = fs().file_errors();
    ASSERT_EQ(list.errors.size(), 1u);
    EXPECT_EQ(list.errors[0].path, "file");
    EXPECT_EQ(list.errors[0].error_number, EIO);
    EXPECT_EQ(list.errors[0].what, file_operation::write_back);
    EXPECT_EQ(list.errors[0].discarded, !at_unmount);
    EXPECT_EQ(list.errors[0].at_unmount, at_unmount);
    EXPECT_EQ(list.errors[0].count, 1u);
    EXPECT_EQ(list.dropped, 0u);
  }
  void expect_unmount_to_throw() {
    try {
      unmount();
      ADD_FAILURE() << "bytes are lost";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EIO);
      EXPECT_EQ(e.path(), "file");
    }
  }
};

TEST_F(late_close_with_a_loss, reports_it_when_another_group_makes_the_close) {
  session other(fs(), group_kind::thread);
  // Both make it, and neither opens that file.
  std::thread opens([&] { EXPECT_GE(other.open("other"), 0); });
  EXPECT_GE(calls().open("other", O_RDWR), 0);
  opens.join();
  expect_one_loss(false);
  expect_at_next_open("old\n");
  EXPECT_EQ(calls().close(open_and_append("gpu\n")), 0);
  expect_one_loss(false);
  expect_unmount_to_throw();
  expect_one_loss(false);
}

TEST_F(late_close_with_a_loss, reports_it_once_when_the_close_is_answered_late) {
  post_the_close();
  answer();
  EXPECT_TRUE(eventually([&] { return !fs().file_errors().errors.empty(); }));
  expect_one_loss(false);
  expect_at_next_open("old\n");
  expect_unmount_to_throw();
  expect_one_loss(false);
}

TEST_F(late_close_with_a_loss, reports_it_when_the_close_is_never_answered) {
  post_the_close();
  EXPECT_THROW(unmount(), error);
  expect_one_loss(true);
  answer();
}

TEST_F(late_close_with_a_loss, reports_it_when_the_unmount_makes_the_close) {
  expect_unmount_to_throw();
  expect_one_loss(true);
  EXPECT_EQ(memory_->content("file"), "old\n");
}

// Two groups post the first close at the same time, and get no answer. The second close is still to
// be made.
TEST_F(late_close, that_two_groups_post_leaves_the_other_closes) {
  options_.channel_slots = workers + 2;
  memory_->write("second", "old\n");
  memory_->write("other", "other\n");
  memory_->write("another", "another\n");
  const std::int32_t first = calls().open("file", O_RDWR | O_APPEND),
                     second = calls().open("second", O_RDWR);
  ASSERT_EQ(calls().write(first, "lost\n", 0), 5);
  calls().expect_read(second, "old\n", 0, 10);
  keep_workers_busy();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(hurried().unlink("dead"), -EIO);  // takes the other slots
  EXPECT_EQ(hurried().close(first), -EIO);
  EXPECT_EQ(hurried().close(second), -EIO);
  answer();

  server_answers_ = false;
  keep_workers_busy();
  {
    session one(fs(), group_kind::thread, std::chrono::milliseconds(400)),
        two(fs(), group_kind::thread, std::chrono::milliseconds(400));
    std::thread opens([&] { EXPECT_EQ(one.open("other"), -EIO); });
    EXPECT_EQ(two.open("another"), -EIO);
    opens.join();
  }
  answer();
  memory_->write("second", "new\n");
  const std::int32_t fd = calls().open("second");
  calls().expect_read(fd, "new\n", 0, 10);
}

// The caller of an open gave up, the host opened the file all the same, and has not closed it yet
// when the last writer closes it.
TEST_F(late_close, of_an_open_that_was_withdrawn_comes_before_a_later_open) {
  memory_->make_link("alias", "file");
  const std::int32_t writer = open_and_append("gpu\n");
  hang(operation::open, "alias");
  EXPECT_EQ(hurried().open("alias", O_WRONLY), -EIO);
  std::atomic<bool> is_open{false}, go_on{false};
  const schedule_hook before_the_close([&](const char* point) {
    if (std::string_view(point) != "service.opened" || is_open.exchange(true)) return;
    wait_until([&] { return go_on.load(); });
  });
  server_answers_ = true;
  ASSERT_TRUE(eventually([&] { return is_open.load(); }));
  EXPECT_EQ(calls().close(writer), 0);
  memory_->write("file", "new\n");
  std::thread later([&] { expect_at_next_open("new\n"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  go_on = true;
  later.join();
}

// The next file that is opened for writing gets the inode state of the one that was closed.
TEST_F(late_close, without_an_answer_reports_no_loss_for_another_file) {
  memory_->write("other", "other\n");
  const std::int32_t fd = calls().open("file", O_RDWR | O_APPEND);
  ASSERT_EQ(calls().write(fd, "lost\n", 0), 5);
  keep_workers_busy();
  session others(fs(), group_kind::thread);
  std::int32_t other = -1;
  {
    const schedule_hook late([&](const char* point) {
      if (std::string_view(point) != "file.close_unanswered") return;
      answer();
      EXPECT_TRUE(eventually([&] { return !fs().file_errors().errors.empty(); }));
      EXPECT_TRUE(eventually([&] { return memory_->open_now() == 0; }));
      std::thread([&] { other = others.open("other", O_RDWR); }).join();
    });
    EXPECT_EQ(hurried().close(fd), -EIO);
  }
  ASSERT_GE(other, 0) << "the close was answered in time";
  EXPECT_EQ(others.close(other), 0);
  for (const file_error& e : fs().file_errors().errors)
    EXPECT_EQ(e.path, "file") << e.error_number << ", " << e.count << " times";
}

// A loss that was posted with a close, and that the service did not see before the unmount.
TEST_F(late_close, that_is_never_answered_leaves_its_loss_to_the_unmount) {
  options_.unmount_timeout = std::chrono::milliseconds(500);
  const std::int32_t fd = calls().open("file", O_RDWR | O_APPEND);
  ASSERT_EQ(calls().write(fd, "lost\n", 0), 5);
  keep_workers_busy();
  EXPECT_EQ(hurried().close(fd), -EIO);
  EXPECT_TRUE(fs().file_errors().errors.empty());
  EXPECT_THROW(unmount(), error);
  const file_error_list list = fs().file_errors();
  ASSERT_EQ(list.errors.size(), 1u);
  EXPECT_EQ(list.errors[0].path, "file");
  EXPECT_TRUE(list.errors[0].at_unmount);
  answer();
}

// The host opens the file for a caller that has given up.
TEST_F(late_close, of_an_open_that_came_late_leaves_nothing_behind) {
  hang(operation::open, "file");
  // An open that no thread has begun is withdrawn.
  for (int i = 0; i < 50 && hanging_ == 0; ++i) {
    EXPECT_EQ(hurried().open("file", O_RDWR | O_APPEND), -EIO);
  }
  EXPECT_GE(hanging_, 1);
  answer();
  EXPECT_TRUE(eventually([&] { return memory_->open_now() == 0; })) << "nobody closes it";
  for (int i = 0; i < 3; ++i) {
    append_as_another_program("cpu\n");
    EXPECT_EQ(calls().close(open_and_append("gpu\n")), 0);
  }
  EXPECT_EQ(memory_->content("file"), "old\ncpu\ngpu\ncpu\ngpu\ncpu\ngpu\n");
}

TEST_F(late_close, of_an_open_for_reading_that_came_late_leaves_nothing_behind) {
  hang(operation::open, "file");
  EXPECT_EQ(hurried().open("file"), -EIO);
  answer();
  EXPECT_TRUE(eventually([&] { return memory_->open_now() == 0; })) << "nobody closes it";
  append_as_another_program("cpu\n");
  expect_at_next_open("old\ncpu\n");
}

}  // namespace
}  // namespace gpufs::testing

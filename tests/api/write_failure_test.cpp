// Writes that the host cuts short, or fails: who is told, what the file has afterwards, what stays
// dirty.
#include <errno.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "api/matrix.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

class write_failure_test : public conformance {
 protected:
  ~write_failure_test() override {
    go_on_ = true;
    unmount();
  }
  // The next call of this kind of the backend hangs until `go_on_` is set.
  void begin_hanging(operation on) {
    options.workers = 3;
    fault hang;
    hang.on = on;
    hang.times_max = 1;
    hang.before = [this] {
      stands_ = true;
      while (!go_on_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    io->add(hang);
  }

  // Makes a call of hurried(), which gives up. It is repeated until the backend's call hangs: a
  // request that no worker has begun is withdrawn, and leaves nothing behind.
  template <class Call>
  void expect_no_answer(const Call& call) {
    for (int i = 0; i < 80 && !stands_; ++i) {
      EXPECT_EQ(call(), -EIO);
      wait_until([&] { return stands_.load(); }, std::chrono::milliseconds(250));
    }
    ASSERT_TRUE(stands_);
  }

  std::atomic<bool> stands_{false}, go_on_{false};
};
INSTANTIATE_TEST_SUITE_P(conformance, write_failure_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(write_failure_test, an_error_reaches_who_syncs_and_the_bytes_stay) {
  std::string content = create("a", 3 * page_bytes());
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    const std::int32_t fd = open("a", O_RDWR);
    ASSERT_EQ(calls().write(fd, "some bytes", static_cast<std::int64_t>(page_bytes()) - 5), 10);
    content.replace(page_bytes() - 5, 10, "some bytes");
    fail(operation::write, error);
    EXPECT_EQ(calls().sync(fd), -error);
    EXPECT_EQ(calls().sync(fd), -error);
    calls().expect_read(fd, content, 0, content.size());
    io->clear();
    EXPECT_EQ(calls().sync(fd), 0);
    expect_content("a", content);
    EXPECT_EQ(calls().close(fd), 0);
  }
}

// Linux marks pages that it could not write as clean: the next fdatasync(2) succeeds, and the bytes
// are lost. (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020.)
TEST_P(write_failure_test, after_a_failed_sync_every_sync_and_close_fails_up_to_the_last_close) {
  std::string content = create("a", 3 * page_bytes());
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    const std::int32_t fd = open("a", O_RDWR);
    const std::int32_t other = open("a", O_WRONLY);
    session second(fs(), GetParam().kind);
    ASSERT_EQ(calls().write(fd, "some bytes", 5), 10);
    content.replace(5, 10, "some bytes");
    fail(operation::sync, error, 1);
    EXPECT_EQ(calls().sync(fd), -error);
    io->clear();
    EXPECT_EQ(calls().sync(fd), -error);
    EXPECT_EQ(second.sync(other), -error) << "a group that was not there when the sync failed";
    ASSERT_EQ(second.write(other, "more", 50), 4);
    content.replace(50, 4, "more");
    EXPECT_EQ(second.sync(other), -error);
    EXPECT_EQ(second.close(other), -error);
    const std::int32_t late = open("a", O_RDWR);
    EXPECT_EQ(calls().sync(late), -error) << "opened while the file was open";
    EXPECT_EQ(calls().close(late), -error);
    EXPECT_EQ(calls().close(fd), -error);
    const std::int32_t again = open("a", O_RDWR);
    EXPECT_EQ(calls().sync(again), 0) << "opened after the last close";
    EXPECT_EQ(calls().close(again), 0);
    expect_content("a", content);
  }
}

TEST_P(write_failure_test, an_error_of_the_last_close_loses_what_was_not_written) {
  const std::string content = create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "lost", 5), 4);
  fail(operation::write, ENOSPC);
  EXPECT_EQ(calls().close(fd), -ENOSPC);
  io->clear();
  EXPECT_EQ(calls().write(fd, "x", 0), -EBADF);
  expect_content("a", content);
  const std::int32_t again = open("a", O_RDWR);
  calls().expect_read(again, content, 0, content.size());
  EXPECT_EQ(calls().close(again), 0);
}

TEST_P(write_failure_test, writes_that_are_cut_short_go_on) {
  fault shortened;
  shortened.on = operation::write;
  shortened.bytes_max = 100;
  shortened.every = 2;
  io->add(shortened);
  fault interrupted;
  interrupted.on = operation::write;
  interrupted.error_number = EINTR;
  interrupted.every = 3;
  io->add(interrupted);
  const std::string content = self_checking(3, 0, 0, 5 * page_bytes() + 3);
  const std::int32_t fd = open("new", O_RDWR | O_CREAT);
  ASSERT_EQ(calls().write(fd, content, 0), static_cast<std::int64_t>(content.size()));
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("new", content);
}

// A write-back of whole and of other pages together that fails: what is written of them afterwards
// is what was written to them.
TEST_P(write_failure_test, a_failed_write_back_leaves_no_bits_behind) {
  std::string content = create("a", 4 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const std::string whole(page_bytes(), 'w');
  ASSERT_EQ(calls().write(fd, whole, 0), static_cast<std::int64_t>(page_bytes()));
  ASSERT_EQ(calls().write(fd, "part", static_cast<std::int64_t>(page_bytes()) + 9), 4);
  fail(operation::write, ENOSPC, 1);
  EXPECT_EQ(calls().sync(fd), -ENOSPC);
  io->clear();
  EXPECT_EQ(calls().sync(fd), 0);
  content.replace(0, page_bytes(), whole);
  content.replace(page_bytes() + 9, 4, "part");
  expect_content("a", content);
  files->write_at("a", 20, "theirs");
  content.replace(20, 6, "theirs");
  ASSERT_EQ(calls().write(fd, "x", 3), 1);
  content[3] = 'x';
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

// Told once, by the call that fails.
TEST_P(write_failure_test, an_error_of_msync_is_told_once) {
  create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const map_answer m = calls().map_write(fd, 0, 100);
  ASSERT_EQ(m.result, 100);
  EXPECT_EQ(calls().poke(m.pointer, "stored"), 6);
  fail(operation::write, EDQUOT, 1);
  EXPECT_EQ(calls().msync(fd, m.pointer, 100), -EDQUOT);
  EXPECT_EQ(calls().msync(fd, m.pointer, 100), 0);
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 100), 0);
  EXPECT_EQ(calls().sync(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(write_failure_test, an_append_that_fails_leaves_no_hole) {
  const std::string content = create("a", page_bytes() + 100);
  const std::int32_t fd = open("a", O_RDWR | O_APPEND);
  fail(operation::read, EIO);
  EXPECT_EQ(calls().write(fd, "xyz", 0), -EIO) << "the rest of the page cannot be fetched";
  EXPECT_EQ(calls().status(fd).status.size, content.size());
  io->clear();
  EXPECT_EQ(calls().write(fd, "xyz", 0), 3);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content + "xyz");
}

// Of an append of several pages, of which the first cannot be fetched; a block's warps have written
// others.
TEST_P(write_failure_test, an_append_that_fails_in_part_leaves_the_file_as_long_as_it_says) {
  const std::string content = create("a", page_bytes() + 100);
  const std::string more = self_checking(4, 0, 0, 12 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR | O_APPEND);
  fail(operation::read, EIO);
  EXPECT_EQ(calls().write(fd, more, 0), -EIO);
  io->clear();
  const std::uint64_t size = calls().status(fd).status.size;
  EXPECT_EQ(calls().write(fd, "xyz", 0), 3);
  EXPECT_EQ(calls().close(fd), 0);
  const std::string now = files->content("a");
  ASSERT_EQ(now.size(), size + 3);
  ASSERT_LE(size, content.size() + more.size());
  expect_same_bytes(now.substr(0, content.size()), content, "what was there before");
  expect_same_bytes(now.substr(size), "xyz", "what was appended later");
  for (std::uint64_t i = 0; i < size - content.size(); ++i) {
    const char c = now[content.size() + i];
    ASSERT_TRUE(c == 0 || c == more[i]) << "byte " << i << " of the append";
  }
}

// Every call of the backend fails in turn, once: one call of the program returns its error, and
// nothing is lost. After a failed sync all later ones and the close return it.
TEST_P(write_failure_test, each_failure_is_told_and_loses_nothing) {
  options.cache_bytes =
      16 * page_bytes();  // so that pages are written back for want of frames, too
  const std::uint64_t size = 30 * page_bytes();
  for (const operation on : {operation::write, operation::sync, operation::truncate}) {
    std::uint64_t struck = 1;
    for (std::uint64_t k = 1; struck != 0 && k < 12; k += is_sanitized ? 3 : 1) {
      constexpr std::array<int, 3> errors{EIO, ENOSPC, EDQUOT};
      const int error = errors[k % errors.size()];
      const ::testing::ScopedTrace trace(
          __FILE__, __LINE__,
          "call " + std::to_string(k) + " of kind " + std::to_string(static_cast<int>(on)));
      std::string content = create("a", size);
      const std::int32_t fd = open("a", O_RDWR);
      fail(on, error, k);
      const std::uint64_t before = io->strikes();
      unsigned told = 0;
      const auto tell = [&](std::int64_t result) {
        if (result == -error) ++told;
        else EXPECT_EQ(result, 0);
        return result == 0;
      };
      for (unsigned i = 0; i < 4; ++i) {
        const std::string part = self_checking(8, i, 0, 9 * page_bytes() + 31 * i);
        const std::uint64_t at = i * 5 * page_bytes() + 17 * i;
        ASSERT_EQ(calls().write(fd, part, static_cast<std::int64_t>(at)),
                  static_cast<std::int64_t>(part.size()));
        if (content.size() < at + part.size()) content.resize(at + part.size(), '\0');
        content.replace(at, part.size(), part);
        if (i == 1) (void)tell(calls().sync(fd));
        if (i != 2) continue;
        (void)tell(calls().truncate(fd, static_cast<std::int64_t>(size - 50)));
        content.resize(calls().status(fd).status.size);
      }
      (void)tell(calls().sync(fd));
      struck = io->strikes() - before;
      io->clear();
      if (on == operation::sync && struck != 0) {
        EXPECT_GE(told, struck);
        EXPECT_EQ(calls().sync(fd), -error);
        EXPECT_EQ(calls().close(fd), -error);
      } else {
        EXPECT_EQ(told, struck);
        EXPECT_EQ(calls().close(fd), 0);
      }
      expect_content("a", content);
    }
  }
}

// A write that the host has begun and not answered in time may still land on top of later ones. So
// none is made until its answer has come, however late; then the file is written as if nothing had
// happened.
TEST_P(write_failure_test, a_write_that_is_answered_late_costs_time_and_no_data) {
  std::string content = create("a", 3 * page_bytes());
  begin_hanging(operation::write);
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  content.replace(5, 4, "some");
  expect_no_answer([&] { return hurried().sync(fd); });
  ASSERT_EQ(calls().write(fd, "more", 7), 4);
  content.replace(7, 4, "more");
  EXPECT_EQ(hurried().sync(fd), -EIO) << "still none";
  calls().expect_read(fd, content, 0, content.size());
  // The answer comes while a sync waits for it.
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go_on_ = true;
  });
  EXPECT_EQ(calls().sync(fd), 0);
  host.join();
  expect_content("a", content);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

// A truncation that the host has begun and not answered in time may still take place: then no sync
// says that all is well.
TEST_P(write_failure_test, after_a_truncation_without_an_answer_every_sync_and_close_fails) {
  (void)create("a", 3 * page_bytes());
  begin_hanging(operation::truncate);
  const std::int32_t fd = open("a", O_RDWR);
  expect_no_answer([&] { return hurried().truncate(fd, 5); });
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  EXPECT_EQ(hurried().sync(fd), -EIO);
  go_on_ = true;
  wait_until([&] { return files->content("a").size() == 5; });
  EXPECT_EQ(calls().sync(fd), -EIO);
  EXPECT_EQ(calls().close(fd), -EIO);
}

// The late write would bring bytes back that the truncation has cut. So the truncation waits for
// its answer.
TEST_P(write_failure_test, a_truncation_waits_for_a_write_without_an_answer) {
  begin_hanging(operation::write);
  const std::int32_t fd = open("a", O_RDWR | O_CREAT);
  ASSERT_EQ(calls().write(fd, "secret", 0), 6);
  expect_no_answer([&] { return hurried().sync(fd); });
  EXPECT_EQ(hurried().truncate(fd, 0), -EIO);
  EXPECT_EQ(calls().status(fd).status.size, 6u) << "nothing has changed";
  calls().expect_read(fd, "secret", 0, 6);
  EXPECT_EQ(hurried().sync(fd), -EIO);
  go_on_ = true;
  EXPECT_EQ(calls().truncate(fd, 0), 0);
  EXPECT_EQ(calls().sync(fd), 0);
  expect_content("a", "");
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", "");
}

// Also when nothing is dirty any more: the last close has given up the bytes, and another
// descriptor goes on.
TEST_P(write_failure_test, a_write_that_follows_a_late_truncation_is_not_cut) {
  (void)create("a", 3 * page_bytes());
  begin_hanging(operation::truncate);
  const std::int32_t fd = open("a", O_RDWR);
  expect_no_answer([&] { return hurried().truncate(fd, 0); });
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  EXPECT_EQ(hurried().sync(fd), -EIO) << "it is held back";
  go_on_ = true;
  wait_until(
      [&] { return calls().sync(fd) == -EIO && files->content("a").size() != 3 * page_bytes(); });
  wait_until([&] { return calls().sync(fd) == -EIO && files->content("a").size() == 9; });
  expect_content("a", std::string(5, '\0') + "some");
  EXPECT_EQ(calls().close(fd), -EIO) << "what was there before is lost";
}

// A write that was given up, and lands when the file has been closed and opened again, would lie on
// top of what is written then.
TEST_P(write_failure_test,
       a_file_is_not_opened_for_writing_before_a_write_that_was_given_up_has_ended) {
  begin_hanging(operation::write);
  std::int32_t fd = open("a", O_RDWR | O_CREAT);
  ASSERT_EQ(calls().write(fd, "old bytes", 0), 9);
  expect_no_answer([&] { return hurried().sync(fd); });
  EXPECT_EQ(hurried().close(fd), -EIO);
  for (const int flags : {O_RDWR, O_WRONLY, O_RDWR | O_CREAT | O_TRUNC, O_WRONLY | O_APPEND})
    EXPECT_EQ(open("a", flags), -EBUSY) << flags;
  const std::int32_t reader = open("a", O_RDONLY);
  EXPECT_EQ(calls().close(reader), 0);
  EXPECT_EQ(open("a", O_RDWR), -EBUSY) << "a reader's version of the file came between";
  go_on_ = true;
  wait_until([&] { return (fd = open("a", O_RDWR)) != -EBUSY; });
  ASSERT_GE(fd, 0);
  EXPECT_EQ(calls().status(fd).status.size, 9u) << "the late write has taken place";
  ASSERT_EQ(calls().write(fd, "new", 0), 3);
  EXPECT_EQ(calls().sync(fd), 0);
  expect_content("a", "new bytes");
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(write_failure_test,
       a_file_is_not_opened_for_writing_before_a_truncation_that_was_given_up_has_ended) {
  for (const bool as_it_opens : {false, true}) {
    const std::string content = create("a", 10);
    go_on_ = stands_ = false;
    begin_hanging(operation::truncate);
    std::int32_t fd = -EIO;
    if (as_it_opens) {
      expect_no_answer([&] { return hurried().open(files->path("a"), O_WRONLY | O_TRUNC); });
    } else {
      fd = open("a", O_RDWR);
      expect_no_answer([&] { return hurried().truncate(fd, 0); });
      EXPECT_EQ(hurried().close(fd), -EIO);
    }
    EXPECT_EQ(open("a", O_WRONLY | O_CREAT | O_TRUNC), -EBUSY);
    EXPECT_EQ(open("a", O_RDWR), -EBUSY);
    expect_content("a", content);
    go_on_ = true;
    wait_until([&] { return (fd = open("a", O_RDWR)) != -EBUSY; });
    ASSERT_GE(fd, 0);
    ASSERT_EQ(calls().write(fd, "the result", 0), 10);
    EXPECT_EQ(calls().sync(fd), 0);
    EXPECT_EQ(calls().close(fd), 0);
    expect_content("a", "the result");
    io->clear();
  }
}

// A removal that was given up, and takes place later, would remove the file that has the name then.
TEST_P(write_failure_test, a_path_is_busy_until_a_removal_that_was_given_up_has_ended) {
  (void)create("a", 10);
  begin_hanging(operation::unlink);
  expect_no_answer([&] { return hurried().unlink(files->path("a")); });
  EXPECT_EQ(open("a", O_WRONLY | O_CREAT | O_TRUNC), -EBUSY);
  EXPECT_EQ(calls().unlink(files->path("a")), -EBUSY);
  EXPECT_EQ(calls().rename(files->path("a"), files->path("b")), -EBUSY);
  EXPECT_EQ(calls().close(open("c", O_WRONLY | O_CREAT)), 0) << "of other paths nothing is known";
  go_on_ = true;
  std::int32_t fd = -EBUSY;
  wait_until([&] { return (fd = open("a", O_WRONLY | O_CREAT)) != -EBUSY; });
  ASSERT_GE(fd, 0);
  ASSERT_EQ(calls().write(fd, "new", 0), 3);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", "new");
}

// A rename that was given up, and takes place later, would publish what has the temporary name
// then.
TEST_P(write_failure_test, both_paths_are_busy_until_a_rename_that_was_given_up_has_ended) {
  const std::string content = create("a", 10);
  begin_hanging(operation::rename);
  expect_no_answer([&] { return hurried().rename(files->path("a"), files->path("b")); });
  EXPECT_EQ(calls().rename(files->path("a"), files->path("b")), -EBUSY);
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(open(name, O_WRONLY | O_CREAT), -EBUSY) << name;
    EXPECT_EQ(calls().unlink(files->path(name)), -EBUSY) << name;
  }
  EXPECT_EQ(open("a", O_RDWR), -EBUSY) << "what is written there would get the other name";
  EXPECT_EQ(calls().close(open("a", O_RDONLY)), 0);
  go_on_ = true;
  std::int32_t fd = -EBUSY;
  wait_until([&] { return (fd = open("a", O_WRONLY | O_CREAT)) != -EBUSY; });
  ASSERT_GE(fd, 0);
  ASSERT_EQ(calls().write(fd, "half", 0), 4);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("b", content);
}

// All frames dirty, none writable: every call ends, and says so.
TEST_P(write_failure_test, a_full_disk_ends_in_errors_not_in_waiting) {
  options.reclaim_timeout = std::chrono::milliseconds(20);
  const std::int32_t fd = open("new", O_RDWR | O_CREAT);
  fail(operation::write, ENOSPC);
  std::int64_t result = 0;
  std::uint64_t written = 0;
  for (int i = 0; i < 200 && result >= 0; ++i) {
    result = calls().write(fd, std::string(page_bytes(), 'x'), static_cast<std::int64_t>(written));
    if (result > 0) written += static_cast<std::uint64_t>(result);
  }
  EXPECT_EQ(result, -ENOBUFS);
  EXPECT_EQ(calls().sync(fd), -ENOSPC);
  io->clear();
  EXPECT_EQ(calls().write(fd, "y", static_cast<std::int64_t>(written)), 1);
  EXPECT_EQ(calls().sync(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("new", std::string(written, 'x') + "y");
}

}  // namespace
}  // namespace gpufs::testing

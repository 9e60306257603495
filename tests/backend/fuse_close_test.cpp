// Errors that a server keeps for close(2): they reach the program, whichever call was told.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "backend/descriptor_table.hpp"
#include "backend/fuse_fixture.hpp"
#include "gpufs/error.hpp"
#include "support/eventually.hpp"
#include "support/record_lock.hpp"
#include "support/schedule.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

class fuse_close : public fuse_test {};
INSTANTIATE_TEST_SUITE_P(with_workers, fuse_close, ::testing::Values(2u, 4u),
                         ::testing::PrintToStringParamName());

TEST_P(fuse_close, the_error_of_close_is_the_last_gcloses_and_is_kept_for_the_host) {
  for (const int error_number : {EDQUOT, EIO}) {
    run({}, [error_number](fuse_folder& files) {
      mount fs(options_of(GetParam()));
      session calls(fs, kind);
      const std::int32_t fd = calls.open(files / "a", O_WRONLY | O_CREAT);
      ASSERT_GE(fd, 0);
      ASSERT_EQ(calls.open(files / "a", O_WRONLY | O_CREAT), fd);
      ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
      files.fail(on::flush, error_number);
      EXPECT_EQ(calls.close(fd), 0) << "another has it open";
      EXPECT_EQ(calls.close(fd), -error_number);
      files.mend();
      const file_error_list list = fs.file_errors();
      ASSERT_EQ(list.errors.size(), 1u);
      EXPECT_EQ(list.errors[0].path, files / "a");
      EXPECT_EQ(list.errors[0].error_number, error_number);
      EXPECT_EQ(list.errors[0].what, file_operation::close);
      // It was that close's error.
      const std::int32_t again = calls.open(files / "a", O_RDWR);
      ASSERT_EQ(calls.write(again, "other", 0), 5);
      EXPECT_EQ(calls.close(again), 0);
      EXPECT_EQ(content_of(files.on_server("a")), "other");
      EXPECT_THROW(fs.unmount(), error);
    });
  }
}

TEST_P(fuse_close, the_error_of_close_of_a_file_that_nobody_closed_is_that_of_unmount) {
  run({}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    {
      session calls(fs, kind);
      ASSERT_EQ(calls.write(calls.open(files / "a", O_WRONLY | O_CREAT), "bytes", 0), 5);
    }
    files.fail(on::flush, EDQUOT);
    try {
      fs.unmount();
      ADD_FAILURE() << "bytes may be lost";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EDQUOT);
      EXPECT_EQ(e.path(), files / "a");
    }
  });
}

// A close of the process's would drop the program's locks on the file.
TEST_P(fuse_close, the_error_of_close_of_a_locked_file_is_told_and_the_lock_stays) {
  if (!descriptor_table::can_be_own("/proc"))
    GTEST_SKIP() << "this system has no tables for single threads";
  run({}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    put(files / "a", "content");
    const int mine = ::open((files / "a").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(set_lock(mine, F_WRLCK));
    const std::int32_t fd = calls.open(files / "a", O_RDWR);
    ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
    files.fail(on::flush, EDQUOT);
    EXPECT_EQ(calls.close(fd), -EDQUOT);
    files.mend();
    EXPECT_TRUE(is_locked(mine));
    EXPECT_THROW(fs.unmount(), error);
  });
}

// What is written is in the client's memory until the file is synced or closed, as with NFS.
TEST_P(fuse_close, what_the_server_refuses_after_the_write_is_the_error_of_close) {
  run({.writes_back = true}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    std::int32_t fd = -1;
    ASSERT_NO_FATAL_FAILURE(write_what_will_be_refused(calls, files, fd));
    EXPECT_EQ(calls.close(fd), -ENOSPC);
    files.mend();
    const file_error_list list = fs.file_errors();
    ASSERT_EQ(list.errors.size(), 1u);
    EXPECT_EQ(list.errors[0].what, file_operation::close);
    EXPECT_EQ(list.errors[0].error_number, ENOSPC);
  });
}

// FUSE tells an error once for the file, to whoever closes one of its descriptors next.
TEST_P(fuse_close, the_error_of_close_is_not_lost_to_another_groups_close_or_open) {
  for (const bool opens : {false, true}) {
    for (const int error_number : {ENOSPC, EFBIG}) {
      run({.writes_back = true}, [opens, error_number](fuse_folder& files) {
        mount fs(options_of(GetParam()));
        session calls(fs, kind), others(fs, kind);
        const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT);
        const std::int32_t read = opens ? -1 : others.open(files / "a");
        ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
        ASSERT_EQ(calls.advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);  // now the client has it
        files.fail(on::write, error_number);
        const std::int32_t other = opens ? others.open(files / "a", O_WRONLY) : -1;
        EXPECT_EQ(opens ? 0 : others.close(read), 0);
        EXPECT_TRUE(eventually([&] { return files.calls(on::write) != 0; }));
        files.mend();
        EXPECT_EQ(calls.close(fd), -error_number);
        EXPECT_EQ(opens ? others.close(other) : -error_number, -error_number);
        EXPECT_THROW(fs.unmount(), error);
      });
    }
  }
}

// Another group writes after a gclose was asked for the error, and before the descriptor is closed.
TEST_P(fuse_close, the_error_of_close_is_not_lost_to_a_close_that_was_reported_before) {
  run({.writes_back = true}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind), others(fs, kind);
    const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT),
                       other = others.open(files / "a", O_WRONLY);
    std::atomic<bool> is_past{false};
    {
      const schedule_hook hook([&](const char* point) {
        if (point != std::string_view("file.close") || is_past.exchange(true)) return;
        std::thread([&] {
          EXPECT_EQ(calls.write(fd, "bytes", 0), 5);
          EXPECT_EQ(calls.advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        }).join();
        files.fail(on::write, ENOSPC);
      });
      EXPECT_EQ(others.close(other), 0);
    }
    EXPECT_TRUE(is_past);
    EXPECT_TRUE(eventually([&] { return files.calls(on::write) != 0; }));
    files.mend();
    EXPECT_EQ(calls.close(fd), -ENOSPC);
  });
}

// A thread that takes a descriptor table of its own closes what it has copied, at which the server
// is asked, too.
TEST_P(fuse_close, the_error_of_close_is_not_lost_to_a_mount_that_begins) {
  run({.writes_back = true}, [](fuse_folder& files) {
    put(files.on_server("other"), "content");
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT);
    ASSERT_EQ(calls.write(fd, std::string(30'000, 'x'), 0), 30'000);
    ASSERT_EQ(calls.advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);  // written, but the client has it
    files.fail(on::write, ENOSPC);
    {
      mount other(options_of(4));
      session others(other, kind);
      for (int i = 0; i < 20; ++i) {
        const std::int32_t read = others.open(files / "other");
        ASSERT_GE(read, 0);
        ASSERT_EQ(others.close(read), 0);
      }
    }
    EXPECT_EQ(calls.close(fd), -ENOSPC);
  });
}

TEST_P(fuse_close, what_the_server_refuses_after_the_write_is_the_error_of_close_of_a_locked_file) {
  if (!descriptor_table::can_be_own("/proc"))
    GTEST_SKIP() << "this system has no tables for single threads";
  for (const bool is_locked_first : {true, false}) {
    run({.writes_back = true}, [is_locked_first](fuse_folder& files) {
      mount fs(options_of(GetParam()));
      session calls(fs, kind);
      put(files / "a", "content");
      const int mine = ::open((files / "a").c_str(), O_RDWR | O_CLOEXEC);
      if (is_locked_first) {
        ASSERT_TRUE(set_lock(mine, F_WRLCK));
      }
      const std::int32_t fd = calls.open(files / "a", O_RDWR);
      ASSERT_EQ(calls.write(fd, std::string(30'000, 'x'), 0), 30'000);
      if (!is_locked_first) {
        ASSERT_TRUE(set_lock(mine, F_WRLCK));
      }
      files.fail(on::write, ENOSPC);
      EXPECT_EQ(calls.close(fd), -ENOSPC);
      files.mend();
      EXPECT_TRUE(is_locked(mine));
    });
  }
}

// The thread that closes a copy of the locked file has a descriptor table since the mount was made.
TEST_P(fuse_close, an_error_of_the_programs_own_file_is_not_lost_to_a_close_of_a_locked_one) {
  if (!descriptor_table::can_be_own("/proc"))
    GTEST_SKIP() << "this system has no tables for single threads";
  run({.writes_back = true}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    put(files / "a", "content");
    const int locked = ::open((files / "a").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(set_lock(locked, F_WRLCK));
    const int mine = ::open((files / "mine").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ASSERT_EQ(::write(mine, "content", 7), 7);
    files.fail(on::write, ENOSPC);
    for (int i = 0; i < 3; ++i) {
      const std::int32_t fd = calls.open(files / "a", O_RDWR);
      ASSERT_GE(fd, 0);
      EXPECT_EQ(calls.close(fd), 0);
    }
    EXPECT_EQ(::close(mine), -1);
    EXPECT_EQ(errno, ENOSPC);
    files.mend();
  });
}

// What it hears of the program's own files, fsync(2) still reports.
TEST_P(fuse_close, an_error_of_the_programs_own_file_is_that_of_its_fsync_after_a_mount) {
  run({.writes_back = true}, [](fuse_folder& files) {
    const int mine = ::open((files / "mine").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ASSERT_EQ(::write(mine, "content", 7), 7);
    files.fail(on::write, ENOSPC);
    {
      mount fs(options_of(GetParam()));
    }
    EXPECT_EQ(::fsync(mine), -1);
    EXPECT_EQ(errno, ENOSPC);
    files.mend();
    (void)::close(mine);
  });
}

// The server is asked when an opener begins; see above.
TEST_P(fuse_close, a_mount_does_not_wait_for_a_server_that_hangs) {
  run({}, [](fuse_folder& files) {
    put(files / "mine", "content");
    const int mine = ::open((files / "mine").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(mine, 0);
    const temporary_folder elsewhere;
    elsewhere.write("a", "some content");
    const bool is_read_only = GetParam() == 2;
    const bool asks = !is_read_only && descriptor_table::can_be_own("/proc");
    files.hang(on::flush);
    const auto start = std::chrono::steady_clock::now();
    {
      mount_options options = options_of(GetParam());
      options.read_only = is_read_only;
      mount fs(options);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
      EXPECT_EQ(files.hanging() != 0, asks);
      files.mend();
      session calls(fs, kind);
      calls.expect_read(calls.open(elsewhere / "a"), "some content", 0, 20);
    }
    (void)::close(mine);
  });
}

// A server may keep an error for the next close of any descriptor: here of one that is only read.
TEST_P(fuse_close, an_error_that_a_readers_close_is_told_is_the_writers) {
  run({}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind), others(fs, kind);
    const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT);
    const std::int32_t read = others.open(files / "a");
    ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
    ASSERT_EQ(calls.sync(fd), 0);
    files.fail(on::flush, EDQUOT, 1);
    EXPECT_EQ(others.close(read), 0);
    EXPECT_TRUE(eventually([&] { return !fs.file_errors().errors.empty(); }));
    EXPECT_EQ(calls.sync(fd), -EDQUOT);
    EXPECT_EQ(calls.close(fd), -EDQUOT);
    EXPECT_THROW(fs.unmount(), error);
  });
}

// Here of one that was asked for its error before.
TEST_P(fuse_close, an_error_that_a_reported_close_is_told_is_the_other_writers) {
  run({}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind), others(fs, kind);
    const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT),
                       other = others.open(files / "a", O_WRONLY);
    ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
    {
      const schedule_hook hook([&](const char* point) {
        if (point == std::string_view("service.close")) files.fail(on::flush, EDQUOT, 1);
      });
      EXPECT_EQ(others.close(other), 0);
      EXPECT_TRUE(eventually([&] { return !fs.file_errors().errors.empty(); }));
    }
    EXPECT_EQ(calls.close(fd), -EDQUOT);
    EXPECT_THROW(fs.unmount(), error);
  });
}

// The threads that opened the file for reading end before the unmount asks the writer.
TEST_P(fuse_close, an_error_that_the_close_of_a_reader_is_told_at_unmount_is_that_of_unmount) {
  run({}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    {
      session calls(fs, kind);
      const std::int32_t read = calls.open(files / "b", O_RDWR | O_CREAT);
      ASSERT_EQ(calls.close(read), 0);
      ASSERT_GE(calls.open(files / "b"), 0);
      const std::int32_t fd = calls.open(files / "b", O_RDWR);
      ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
    }
    files.fail(on::flush, EDQUOT, 1);
    EXPECT_THROW(fs.unmount(), error);
  });
}

TEST_P(fuse_close, an_error_that_the_close_of_a_file_that_was_not_written_is_told_is_nobodys) {
  run({}, [](fuse_folder& files) {
    put(files.on_server("a"), "content");
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    const std::int32_t fd = calls.open(files / "a");
    calls.expect_read(fd, "content", 0, 20);
    files.fail(on::flush, EIO);
    EXPECT_EQ(calls.close(fd), 0);
    EXPECT_NO_THROW(fs.unmount());
    EXPECT_NE(files.calls(on::flush), 0u);
    EXPECT_TRUE(fs.file_errors().errors.empty());
  });
}

}  // namespace
}  // namespace gpufs::testing

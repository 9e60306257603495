// A file system whose server goes wrong, as FUSE and NFS know it: what the host reports late
// reaches the program, and nothing else of the mount suffers.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "backend/fuse_fixture.hpp"
#include "fsx/fsx_run.hpp"
#include "gpufs/error.hpp"
#include "support/eventually.hpp"
#include "support/temporary.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

// Another file under the name, as an editor or another client saves one.
void replace(const std::string& path, const std::string& content) {
  put(path + ".new", content);
  std::filesystem::rename(path + ".new", path);
}

class fuse : public fuse_test {};
INSTANTIATE_TEST_SUITE_P(with_workers, fuse, ::testing::Values(2u, 4u),
                         ::testing::PrintToStringParamName());

TEST_P(fuse, files_are_served_as_any_others) {
  run({}, [](fuse_folder& files) {
    const std::string content = self_checking(1, 0, 0, 100'000);
    put(files.on_server("old"), content);
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    const std::int32_t old = calls.open(files / "old");
    ASSERT_GE(old, 0);
    calls.expect_read(old, content, 0, content.size() + 10);
    const std::int32_t made = calls.open(files / "new", O_RDWR | O_CREAT);
    ASSERT_GE(made, 0);
    EXPECT_EQ(calls.write(made, content, 3), 100'000);
    EXPECT_EQ(calls.sync(made), 0);
    EXPECT_EQ(calls.close(made), 0);
    EXPECT_EQ(content_of(files.on_server("new")), std::string(3, '\0') + content);
    EXPECT_EQ(calls.rename(files / "new", files / "newer"), 0);
    EXPECT_EQ(calls.unlink(files / "newer"), 0);
    EXPECT_EQ(calls.close(old), 0);
    EXPECT_NO_THROW(fs.sync_folder(files / ""));
    EXPECT_NO_THROW(fs.unmount());
    EXPECT_TRUE(fs.file_errors().errors.empty());
  });
}

// ---- errors of fsync(2)

TEST_P(fuse, a_sync_that_fails_is_every_gfsyncs_and_gcloses_up_to_the_last_close) {
  for (const int error_number : {EIO, ENOSPC}) {
    run({}, [error_number](fuse_folder& files) {
      mount fs(options_of(GetParam()));
      session calls(fs, kind);
      const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT);
      ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
      files.fail(on::fsync, error_number, 1);
      EXPECT_EQ(calls.sync(fd), -error_number);
      EXPECT_EQ(calls.sync(fd), -error_number) << "Linux may have dropped the bytes";
      const std::int32_t other = calls.open(files / "a", O_WRONLY);
      EXPECT_EQ(calls.sync(other), -error_number);
      EXPECT_EQ(calls.close(other), -error_number);
      EXPECT_EQ(calls.close(fd), -error_number);
      const std::int32_t again = calls.open(files / "a", O_RDWR);
      ASSERT_EQ(calls.write(again, "other", 0), 5);
      EXPECT_EQ(calls.sync(again), 0);
      EXPECT_EQ(calls.close(again), 0);
      const file_error_list list = fs.file_errors();
      ASSERT_EQ(list.errors.size(), 1u);
      EXPECT_EQ(list.errors[0].what, file_operation::sync);
      EXPECT_EQ(list.errors[0].error_number, error_number);
    });
  }
}

TEST_P(fuse, what_the_server_refuses_after_the_write_is_the_error_of_sync) {
  run({.writes_back = true}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    std::int32_t fd = -1;
    ASSERT_NO_FATAL_FAILURE(write_what_will_be_refused(calls, files, fd));
    EXPECT_EQ(calls.sync(fd), -ENOSPC);
    files.mend();
    EXPECT_EQ(calls.sync(fd), -ENOSPC) << "the client has dropped the bytes";
    EXPECT_EQ(calls.close(fd), -ENOSPC);
  });
}

TEST_P(fuse, a_folder_that_cannot_be_synced_is_an_error) {
  run({}, [](fuse_folder& files) {
    mount fs(options_of(GetParam()));
    files.fail(on::fsyncdir, EIO);
    EXPECT_THROW(fs.sync_folder(files / ""), error);
    files.mend();
    EXPECT_NO_THROW(fs.sync_folder(files / ""));
  });
}

// ---- errors of reads and opens

TEST_P(fuse, a_read_that_fails_is_the_greads_and_the_next_one_tries_again) {
  for (const int error_number : {EIO, ESTALE}) {
    run({}, [error_number](fuse_folder& files) {
      const std::string content = self_checking(1, 0, 0, 1'000'000);
      put(files.on_server("a"), content);
      mount_options options = options_of(GetParam());
      options.extent_budget_bytes = std::uint64_t{1} << 22;
      mount fs(options);
      session calls(fs, kind);
      const std::int32_t fd = calls.open(files / "a");
      ASSERT_GE(fd, 0);
      files.fail(on::read, error_number);
      EXPECT_EQ(calls.read(fd, 500'000, 4096).result, -error_number);
      const map_answer mapped = calls.map(fd, 300'000, 100);
      EXPECT_EQ(mapped.result, -error_number);
      EXPECT_EQ(calls.view(fd, 400'000, 1).error, -error_number);
      files.mend();
      calls.expect_read(fd, content, 500'000, 4096);
      // From the client's memory, by mappings, too.
      for (std::int64_t at = 0; at < 1'000'000; at += 5000)
        calls.expect_read(fd, content, at, 5000);
      EXPECT_EQ(calls.close(fd), 0);
      EXPECT_TRUE(fs.file_errors().errors.empty());
    });
  }
}

TEST_P(fuse, a_page_that_cannot_be_read_fails_the_write_of_a_part_of_it) {
  run({}, [](fuse_folder& files) {
    const std::string content = self_checking(1, 0, 0, 20'000);
    put(files.on_server("a"), content);
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    const std::int32_t fd = calls.open(files / "a", O_RDWR);
    files.fail(on::read, EIO);
    EXPECT_EQ(calls.write(fd, "part", 5000), -EIO);
    EXPECT_EQ(calls.write(fd, std::string(4096, 'w'), 8192), 4096) << "needs no bytes of before";
    files.mend();
    EXPECT_EQ(calls.close(fd), 0);
    std::string expected = content;
    expected.replace(8192, 4096, std::string(4096, 'w'));
    expect_same_bytes(content_of(files.on_server("a")), expected, "a");
  });
}

TEST_P(fuse, an_open_that_fails_says_why_and_the_next_one_tries_again) {
  run({}, [](fuse_folder& files) {
    put(files.on_server("a"), "content");
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    for (const on which : {on::open, on::lookup, on::getattr}) {
      for (const int error_number : {EIO, ESTALE, EACCES}) {
        for (const int flags : {O_RDONLY, O_RDWR}) {
          files.fail(which, error_number);
          EXPECT_EQ(calls.open(files / "a", flags), -error_number) << static_cast<int>(which);
          files.mend();
          const std::int32_t fd = calls.open(files / "a", flags);
          ASSERT_GE(fd, 0) << static_cast<int>(which) << " " << error_number;
          calls.expect_read(fd, "content", 0, 100);
          EXPECT_EQ(calls.close(fd), 0);
        }
      }
    }
  });
}

// ---- another client

TEST_P(fuse, a_file_that_was_replaced_on_the_server_is_stale_and_a_new_open_has_the_new_one) {
  constexpr double long_s = 3600;
  for (const fuse_options& options :
       {fuse_options{}, fuse_options{long_s, 0}, fuse_options{long_s, long_s}}) {
    run(options, [](fuse_folder& files) {
      const std::string before = self_checking(1, 0, 0, 300'000),
                        after = self_checking(2, 0, 0, 200'000);
      for (const std::string& content : {before, after}) {
        replace(files.on_server("b"), content);
        ASSERT_EQ(content_of(files / "b"), content) << "with open(2) it is so";
      }
      mount fs(options_of(GetParam()));
      session calls(fs, kind);
      for (const int flags : {O_RDONLY, O_RDWR}) {
        replace(files.on_server("a"), before);
        std::int32_t fd = calls.open(files / "a", flags);
        ASSERT_GE(fd, 0);
        calls.expect_read(fd, before, 0, 4096);
        replace(files.on_server("a"), after);
        // What the kernel or the mount has may be read still.
        const std::int64_t result = calls.read(fd, 250'000, 4096).result;
        EXPECT_TRUE(result == -ESTALE || result == 4096) << result;
        (void)calls.close(fd);
        fd = calls.open(files / "a", flags);
        ASSERT_GE(fd, 0) << "opened with " << flags;
        calls.expect_read(fd, after, 0, 300'000);
        EXPECT_EQ(calls.close(fd), 0);
      }
    });
  }
}

TEST_P(fuse, what_was_not_written_to_a_stale_file_is_an_error_of_its_close) {
  run({}, [](fuse_folder& files) {
    put(files.on_server("a"), "content");
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    const std::int32_t fd = calls.open(files / "a", O_RDWR);
    ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
    std::filesystem::remove(files.on_server("a"));
    EXPECT_EQ(calls.close(fd), -ESTALE);
    const file_error_list list = fs.file_errors();
    ASSERT_GE(list.errors.size(), 1u);
    EXPECT_EQ(list.errors[0].what, file_operation::write_back);
    EXPECT_EQ(list.errors[0].error_number, ESTALE);
    EXPECT_EQ(calls.open(files / "a", O_RDWR), -ENOENT);
  });
}

// ---- a server that is slow, or dead

TEST_P(fuse, a_server_that_hangs_costs_its_callers_the_time_of_a_request_and_others_nothing) {
  run({}, [](fuse_folder& files) {
    const std::string content = self_checking(1, 0, 0, 100'000);
    put(files.on_server("a"), content);
    const temporary_folder elsewhere;
    elsewhere.write("b", content);
    mount fs(options_of(GetParam()));
    session calls(fs, kind), hurried(fs, kind, std::chrono::milliseconds(300));
    const std::int32_t fd = calls.open(files / "a");
    ASSERT_GE(fd, 0);
    files.hang(on::read);
    EXPECT_EQ(hurried.read(fd, 50'000, 100).result, -EIO);
    EXPECT_TRUE(eventually([&] { return files.hanging() >= 1; }));
    const std::int32_t other = calls.open(elsewhere / "b");
    ASSERT_GE(other, 0);
    calls.expect_read(other, content, 0, 50'000);
    files.mend();
    calls.expect_read(fd, content, 50'000, 100);
    EXPECT_EQ(calls.close(fd), 0);
  });
}

TEST_P(fuse, a_close_that_hangs_is_an_error_in_the_end) {
  run({}, [](fuse_folder& files) {
    mount_options options = options_of(GetParam());
    options.unmount_timeout = std::chrono::seconds(2);
    auto fs = std::make_unique<mount>(options);
    {
      session calls(*fs, kind), hurried(*fs, kind, std::chrono::milliseconds(300));
      const std::int32_t fd = calls.open(files / "a", O_RDWR | O_CREAT);
      ASSERT_EQ(calls.write(fd, "bytes", 0), 5);
      ASSERT_EQ(calls.sync(fd), 0);
      files.hang(on::flush);
      EXPECT_EQ(hurried.close(fd), -EIO);
    }
    EXPECT_THROW(fs->unmount(), error);
    ::testing::internal::CaptureStderr();
    fs.reset();
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("hangs"), std::string::npos);
    files.mend();
    EXPECT_EQ(content_of(files.on_server("a")), "bytes");
  });
}

TEST_P(fuse, a_server_that_dies_is_an_error_and_the_mount_ends) {
  run({}, [](fuse_folder& files) {
    const std::string content = self_checking(1, 0, 0, 100'000);
    put(files.on_server("a"), content);
    mount fs(options_of(GetParam()));
    session calls(fs, kind);
    const std::int32_t read = calls.open(files / "a"),
                       written = calls.open(files / "b", O_RDWR | O_CREAT),
                       left = calls.open(files / "c", O_RDWR | O_CREAT);
    ASSERT_EQ(calls.write(written, "bytes", 0), 5);
    ASSERT_EQ(calls.write(left, "bytes", 0), 5);
    files.kill_server();
    EXPECT_EQ(calls.read(read, 90'000, 100).result, -ENOTCONN);
    EXPECT_EQ(calls.sync(written), -ENOTCONN);
    EXPECT_EQ(calls.close(written), -ENOTCONN);
    EXPECT_EQ(calls.open(files / "a", O_RDWR), -ENOTCONN);
    try {
      fs.unmount();
      ADD_FAILURE() << "bytes are lost";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), ENOTCONN);
    }
    bool is_told = false;
    for (const file_error& e : fs.file_errors().errors)
      is_told = is_told || (e.path == files / "c" && e.at_unmount);
    EXPECT_TRUE(is_told);
  });
}

// ---- all at once

TEST(fuse_fsx, random_calls_agree_with_a_naive_model) {
  for (work_budget budget(is_sanitized ? 1 : 2); budget.next() && !IsSkipped();) {
    SCOPED_TRACE(budget.replay());
    in_fuse_folder({.writes_back = budget.seed() % 2 == 0},
                   [&](fuse_folder& files) { (void)run_fsx(budget.seed(), files / ""); });
  }
}

}  // namespace
}  // namespace gpufs::testing

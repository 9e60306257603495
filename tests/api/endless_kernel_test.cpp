// Kernels that still run when their mount ends: it waits for them, and not for ever. And kernels
// that end, but leave a request.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

// Writes "first" at 0, says so, waits for the test, writes "later" at 8, and closes nothing, or
// only when the service has ended.
struct waiting_writer {
  const char* path;
  std::atomic<bool>* has_written;
  std::atomic<bool>* go_on;
  bool closes = false;

  void operator()(const mount_ref& fs) const {
    const auto g = this_thread();
    const std::int32_t fd = gopen(g, fs, path, O_RDWR);
    EXPECT_EQ(gwrite(g, fs, fd, "first", 5, 0), 5);
    *has_written = true;
    wait_until([&] { return go_on->load(); }, std::chrono::minutes(10));
    if (closes) {
      wait_until([&] { return fs.client().is_dead(); }, std::chrono::minutes(10));
    }
    EXPECT_EQ(gwrite(g, fs, fd, "later", 5, 8), 5);
    if (!closes) return;
    EXPECT_EQ(gfsync(g, fs, fd), -EIO);
    EXPECT_EQ(gclose(g, fs, fd), -EIO);
  }
};

class endless_kernel : public ::testing::Test {
 protected:
  endless_kernel() {
    io_->write("/a", std::string(5000, '-'));
    io_->write("/clean", std::string(5000, '-'));
    options_.backend = io_;
  }
  void begin(bool closes = false) {
    fs_ = std::make_unique<mount>(options_);
    kernel_ = std::thread(
        [this, closes] { launch(*fs_, {}, waiting_writer{"/a", &has_written_, &go_on_, closes}); });
    wait_until([&] { return has_written_.load(); });
    ASSERT_TRUE(has_written_);
  }

  std::shared_ptr<memory_backend> io_ = std::make_shared<memory_backend>();
  mount_options options_ = base_options();
  std::unique_ptr<mount> fs_;
  std::thread kernel_;
  std::atomic<bool> has_written_{false}, go_on_{false};
};

TEST_F(endless_kernel, is_waited_for_and_what_it_wrote_last_is_in_the_file) {
  options_.unmount_timeout = std::chrono::seconds(120);
  begin();
  std::thread ends([&] { EXPECT_NO_THROW(fs_->unmount()); });
  // It goes on only after the mount has begun to end.
  wait_until([&] {
    try {
      (void)fs_->ref();
      return false;
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), ESHUTDOWN);
      return true;
    }
  });
  EXPECT_EQ(io_->content("/a"), std::string(5000, '-'));
  go_on_ = true;
  ends.join();
  kernel_.join();
  std::string expected(5000, '-');
  expected.replace(0, 5, "first").replace(8, 5, "later");
  EXPECT_EQ(io_->content("/a"), expected);
  EXPECT_TRUE(fs_->file_errors().errors.empty());
}

// The service ends after half of the time, the kernel a moment after that.
TEST_F(endless_kernel, may_close_its_files_when_the_service_has_ended) {
  options_.unmount_timeout = std::chrono::seconds(10);
  begin(true);
  go_on_ = true;
  EXPECT_NO_THROW(fs_->unmount());
  kernel_.join();
  std::string expected(5000, '-');
  expected.replace(0, 5, "first").replace(8, 5, "later");
  expect_same_bytes(io_->content("/a"), expected, "/a");
  EXPECT_TRUE(fs_->file_errors().errors.empty());
}

TEST_F(endless_kernel, has_nothing_written_and_its_files_are_reported) {
  options_.unmount_timeout = std::chrono::milliseconds(200);
  begin();
  {
    session calls(*fs_, group_kind::thread);
    ASSERT_GE(calls.open("/clean", O_RDWR), 0);
  }
  try {
    fs_->unmount();
    ADD_FAILURE() << "the kernel runs still";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), ETIMEDOUT);
    EXPECT_EQ(e.path(), "/a");
  }
  EXPECT_EQ(fs_->file_errors().errors.size(), 1u) << "of /clean nothing is lost";
  EXPECT_EQ(io_->content("/a"), std::string(5000, '-'));
  ::testing::internal::CaptureStderr();
  fs_.reset();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("a kernel is still running"),
            std::string::npos);
  // Its memory is there.
  go_on_ = true;
  kernel_.join();
  EXPECT_EQ(io_->content("/a"), std::string(5000, '-'));
}

TEST_F(endless_kernel, keeps_its_extents_registered) {
  const std::string content(1'000'000, 'e');
  io_ = std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  io_->write("/a", std::string(5000, '-'));
  io_->write("/large", content);
  options_.backend = io_;
  options_.extent_budget_bytes = std::uint64_t{1} << 20;
  options_.unmount_timeout = std::chrono::milliseconds(200);
  begin();
  if (fs_->direct_path() != "on") {
    go_on_ = true;
    kernel_.join();
    GTEST_SKIP() << "no direct path: " << fs_->direct_path();
  }
  EXPECT_EQ(fs_->register_file("/large"), content.size());
  try {
    fs_->drop_extents();
    ADD_FAILURE() << "the kernel runs still";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EBUSY);
  }
  EXPECT_EQ(fs_->stats().extent_bytes, content.size());
  go_on_ = true;
  kernel_.join();
  fs_->drop_extents();
  EXPECT_EQ(fs_->stats().extent_bytes, 0u);
}

// For a mount that reads the file "/large", which is one extent, in runs.
mount_options options_for_runs(const std::string& content) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  io->write("/large", content);
  mount_options options = base_options();
  options.backend = io;
  options.cache_bytes = 4 * content.size();
  options.bulk_bytes = 1 << 18;
  options.extent_bytes = options.extent_budget_bytes = content.size();
  return options;
}

struct waiting_reader {
  char* to;
  std::uint64_t bytes;
  std::atomic<bool>* has_begun;
  std::atomic<bool>* may_read;
  std::atomic<std::int64_t>* result;
  void operator()(const mount_ref& fs) const {
    const auto g = this_thread();
    const std::int32_t fd = gopen(g, fs, "/large", O_RDONLY);
    *has_begun = true;
    while (!*may_read) std::this_thread::yield();
    *result = gread(g, fs, fd, to, bytes, 0);
    (void)gclose(g, fs, fd);
  }
};

// Each of them waits for the other only as long as it needs to.
TEST(drop_extents, waits_for_a_kernel_that_reads_in_runs) {
  const std::string content(std::size_t{4} << 20, 'e');
  mount_options options = options_for_runs(content);
  // A wait of one for the other would end with an error, or only after this.
  options.unmount_timeout = std::chrono::seconds(60);
  mount fs(options);
  ASSERT_EQ(fs.bulk_path(), "on");
  std::vector<char> to(content.size());
  std::atomic<bool> has_begun{false}, may_read{false}, drops{false};
  std::atomic<std::int64_t> result{0};
  const auto start = std::chrono::steady_clock::now();
  std::thread kernel([&] {
    launch(fs, {}, waiting_reader{to.data(), to.size(), &has_begun, &may_read, &result});
  });
  while (!has_begun) std::this_thread::yield();
  std::thread dropper([&] {
    drops = true;
    EXPECT_NO_THROW(fs.drop_extents());
  });
  while (!drops) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that it waits
  may_read = true;
  kernel.join();
  dropper.join();
  EXPECT_EQ(result, static_cast<std::int64_t>(content.size()));
  EXPECT_TRUE(std::string(to.begin(), to.end()) == content);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_GT(fs.stats()[counter::bulk_loads], 0u);
}

// Sends a request to load a run into frame 7, and does not wait for the answer.
struct leaving_reader {
  const char* path;
  std::uint32_t bytes;

  void operator()(const mount_ref& fs) const {
    const std::int32_t fd = gopen(this_thread(), fs, path, O_RDONLY);
    ASSERT_GE(fd, 0);
    std::uint64_t handle = 0;
    for (std::uint32_t i = 0; i < fs.layout.file_count; ++i) {
      const std::uint64_t other = fs.at<open_file>(fs.layout.files)[i].handle.value;
      if (other != 0) handle = other;
    }
    constexpr std::uint32_t slot = 5;
    const bulk_target to{7};
    std::memcpy(fs.channel.staging(slot), &to, sizeof to);
    const std::uint32_t sequence = fs.channel.bell(slot).load_relaxed() + 1;
    fs.channel.request(slot).store({request_code::bulk, handle, bytes, 0}, sequence);
    fs.channel.bell(slot).store_release(sequence);
  }
};

// A copier has found the extent, and has not yet copied.
TEST(ended_kernel, has_nothing_copied_from_an_extent_that_was_dropped) {
  const std::string content(std::size_t{1} << 20, 'e');
  mount_options options = options_for_runs(content);
  options.unmount_timeout = std::chrono::milliseconds(200);
  mount fs(options);
  if (fs.direct_path() != "on" || fs.bulk_path() != "on")
    GTEST_SKIP() << fs.direct_path() << ", " << fs.bulk_path();
  ASSERT_EQ(fs.register_file("/large"), content.size());
  std::atomic<bool> is_about_to_copy{false}, go_on{false};
  const schedule_hook hook([&](const char* name) {
    if (std::strcmp(name, "service.driver") != 0) return;
    is_about_to_copy = true;
    wait_until([&] { return go_on.load(); }, std::chrono::minutes(10));
  });
  launch(fs, {}, leaving_reader{"/large", 1 << 18});
  fs.synchronize();
  wait_until([&] { return is_about_to_copy.load(); });
  ASSERT_TRUE(is_about_to_copy);
  try {
    fs.drop_extents();
    ADD_FAILURE() << "the copier has the extent's address";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EBUSY);
  }
  EXPECT_EQ(fs.stats().extent_bytes, content.size());
  go_on = true;
  wait_until([&] {
    try {
      fs.drop_extents();
      return true;
    } catch (const error&) {
      return false;
    }
  });
  EXPECT_EQ(fs.stats().extent_bytes, 0u);
}

}  // namespace
}  // namespace gpufs::testing

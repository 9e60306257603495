// Appends that fail, or are refused, beside groups that write at other places of the file.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "api/matrix.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/schedule.hpp"

namespace gpufs::testing {

// Thread 0 appends more than a file can have, until the others are done. They write a byte each to
// pages of their own, and look whether the file has it.
struct refused_appends_kernel {
  std::int32_t append_fd, write_fd;
  atomic_word<std::uint32_t>* done;
  atomic_word<std::uint64_t>* wrong;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    constexpr std::uint64_t too_many = limits::file_bytes_max - 1;
    constexpr std::int64_t writes = 2000;
    const auto thread = this_thread();
    const char byte = 'x';
    if (thread.grid_rank() == 0) {
      const std::uint64_t start = platform::now_ns();
      while (done->load_relaxed() == 0 && platform::elapsed_ns(start) < 30'000'000'000) {
        if (gwrite(thread, fs, append_fd, &byte, too_many, 0) != -EFBIG) wrong->add_relaxed(1);
      }
      return;
    }
    if (thread.grid_rank() != thread.grid_size() - 1) return;
    for (std::int64_t i = 1; i <= writes; ++i) {
      const std::int64_t at = i * 512;
      file_status status{};
      if (gwrite(thread, fs, write_fd, &byte, 1, at) != 1) wrong->add_relaxed(1);
      if (gfstat(thread, fs, write_fd, status) != 0 ||
          status.size != static_cast<std::uint64_t>(at) + 1)
        wrong->add_relaxed(1);
    }
    done->store_relaxed(1);
  }
};

// Each thread opens the file, appends a line, and closes it, again and again. The access differs,
// so they share no record.
struct appending_openers_kernel {
  static constexpr std::uint32_t lines = 99, line_bytes = 8;
  const char* path;
  atomic_word<std::uint64_t>* wrong;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const auto g = this_thread();
    const auto number = static_cast<std::uint32_t>(g.grid_rank());
    for (std::uint32_t i = 0; i < lines; ++i) {
      const std::int32_t fd = gopen(g, fs, path, (number % 2 == 0 ? O_WRONLY : O_RDWR) | O_APPEND);
      char line[line_bytes] = {
          'g', char('a' + number), ':', char('0' + i / 10), char('0' + i % 10), ' ', ' ', '\n'};
      if (fd < 0 || gwrite(g, fs, fd, line, sizeof line, 0) != sizeof line) wrong->add_relaxed(1);
      if (fd >= 0 && gclose(g, fs, fd) != 0) wrong->add_relaxed(1);
    }
  }
};

namespace {

class append_test : public conformance {
 protected:
  // The next read of a page hangs until go() and fails then.
  void hang_next_read() {
    fault f;
    f.on = operation::read;
    f.nth = 1;
    f.error_number = EIO;
    f.before = [this] {
      hangs_ = true;
      wait_until([this] { return goes_.load(); });
    };
    io->add(f);
  }
  void wait_for_hang() {
    wait_until([this] { return hangs_.load(); });
    ASSERT_TRUE(hangs_);
  }
  void go() { goes_ = true; }
  std::atomic<bool> hangs_{false}, goes_{false};
  const std::string part_ = std::string(8192, 'A'), bytes_ = std::string(4096, 'B');
  // In one page: of several pages, the warps of a block may have written the later ones.
  const std::string short_ = std::string(1000, 'A');
};
INSTANTIATE_TEST_SUITE_P(by, append_test,
                         ::testing::Values(setting{source::posix, group_kind::thread, 4096},
                                           setting{source::memory, group_kind::warp, 4096},
                                           setting{source::memory, group_kind::block, 4096}),
                         name_of_setting);

// An open may come between another group's last close and what the host knew of the file before.
TEST(appends, by_groups_that_open_the_file_for_each_are_all_there) {
  using kernel = appending_openers_kernel;
  constexpr std::uint32_t groups = 2;  // with more, the file is always open
  const auto io = std::make_shared<memory_backend>();
  io->write("log", "");
  mount_options options = base_options();
  options.backend = io;
  options.cpu_threads = groups;
  mount fs(options);
  const device_array<atomic_word<std::uint64_t>> wrong(fs, 1);
  const std::string path = "log";
  const device_array<char> on_device(fs, path.size() + 1);
  fs.copy_to_device(on_device.data(), path.c_str(), path.size() + 1);
  const schedule_hook slow([](const char* name) {
    if (std::string(name) == "files.identified")
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  launch(fs, {.blocks = groups, .threads = 1}, kernel{on_device.data(), wrong.data()});
  fs.synchronize();
  std::uint64_t failed = 1;
  fs.copy_to_host(&failed, wrong.data(), sizeof failed);
  EXPECT_EQ(failed, 0u);
  fs.unmount();
  const std::string content = io->content("log");
  EXPECT_EQ(content.size(), groups * kernel::lines * kernel::line_bytes);
  std::set<std::string> lines;
  for (std::size_t i = 0; i < content.size(); i += kernel::line_bytes)
    lines.insert(content.substr(i, kernel::line_bytes));
  EXPECT_EQ(lines.size(), groups * kernel::lines);
}

TEST_P(append_test, that_fails_keeps_its_place_if_another_group_has_written_there) {
  (void)create("a", 100);
  session other(fs(), GetParam().kind);
  const std::int32_t appends = open("a", O_WRONLY | O_APPEND), writes = open("a", O_RDWR);
  hang_next_read();
  std::thread appending([&] { EXPECT_EQ(other.write(appends, part_, 0), -EIO); });
  wait_for_hang();
  EXPECT_EQ(calls().write(writes, bytes_, 4096), 4096);
  go();
  appending.join();
  io->clear();
  EXPECT_EQ(calls().status(writes).status.size, 8292u);
  EXPECT_EQ(calls().sync(writes), 0);
  const std::string content = files->content("a");
  ASSERT_GE(content.size(), 8192u);
  EXPECT_EQ(content.substr(4096, 4096), bytes_);
}

TEST_P(append_test, that_fails_keeps_its_place_if_the_file_is_mapped_to_be_written) {
  (void)create("a", 3 * 4096 + 100);
  const std::int32_t fd = open("a", O_RDWR | O_APPEND);
  const map_answer mapped = calls().map_write(fd, 0, 100);
  ASSERT_EQ(mapped.result, 100);
  fault f;
  f.on = operation::read;
  f.error_number = EIO;
  f.every = 1;
  io->add(f);
  EXPECT_EQ(calls().write(fd, part_, 0), -EIO);
  io->clear();
  EXPECT_EQ(calls().status(fd).status.size, 3 * 4096 + 100 + part_.size());
  EXPECT_EQ(calls().unmap_write(fd, mapped.pointer, 100), 0);
}

TEST_P(append_test, that_fails_gives_its_place_back_if_all_writers_only_append) {
  (void)create("a", 100);
  session other(fs(), GetParam().kind);
  const std::int32_t appends = open("a", O_WRONLY | O_APPEND), reads = open("a");
  hang_next_read();
  std::thread appending([&] { EXPECT_EQ(other.write(appends, short_, 0), -EIO); });
  wait_for_hang();
  go();
  appending.join();
  io->clear();
  EXPECT_EQ(calls().status(reads).status.size, 100u);
  EXPECT_EQ(calls().write(appends, bytes_, 0), 4096);
  EXPECT_EQ(calls().close(appends), 0);
  EXPECT_EQ(files->content("a").substr(100), bytes_) << "no gap";
}

// Otherwise it might write to a place that is about to be given back.
TEST_P(append_test, is_waited_for_by_an_open_of_a_group_that_writes_elsewhere) {
  (void)create("a", 100);
  session other(fs(), GetParam().kind);
  const std::int32_t appends = open("a", O_WRONLY | O_APPEND);
  hang_next_read();
  std::thread appending([&] { EXPECT_EQ(calls().write(appends, short_, 0), -EIO); });
  wait_for_hang();
  std::atomic<bool> opened{false};
  std::thread writing([&] {
    const std::int32_t writes = other.open(files->path("a"), O_RDWR);
    opened = true;
    EXPECT_EQ(other.write(writes, bytes_, 4096), 4096);
    EXPECT_EQ(other.close(writes), 0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(opened);
  go();
  appending.join();
  writing.join();
  io->clear();
  EXPECT_EQ(calls().close(appends), 0);
  const std::string content = files->content("a");
  ASSERT_EQ(content.size(), 8192u) << "the append had given its place back before";
  EXPECT_EQ(content.substr(4096), bytes_);
}

TEST(append, that_is_refused_hides_no_write_beside_it) {
  const auto io = std::make_shared<memory_backend>();
  io->write("a", "x");
  mount_options options = base_options();
  options.backend = io;
  options.cpu_threads = 2;
  options.cache_bytes = 16 << 20;
  mount fs(options);
  session calls(fs, group_kind::thread);
  const std::int32_t appends = calls.open("a", O_WRONLY | O_APPEND),
                     writes = calls.open("a", O_RDWR);
  const device_array<atomic_word<std::uint32_t>> done(fs, 1);
  const device_array<atomic_word<std::uint64_t>> wrong(fs, 1);
  launch(fs, {.blocks = 2, .threads = 1},
         refused_appends_kernel{appends, writes, done.data(), wrong.data()});
  EXPECT_EQ(wrong.download()[0].load_relaxed(), 0u);
  EXPECT_EQ(calls.sync(writes), 0);
  EXPECT_EQ(io->content("a").size(), 2000u * 512 + 1);
}

}  // namespace
}  // namespace gpufs::testing

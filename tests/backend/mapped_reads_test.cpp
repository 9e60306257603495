// Reads by mapping: which ones they are, and that they say what pread says.
#include "backend/mapped_reads.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/schedule.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t window = mapped_reads::window_bytes;

class reads_by_mapping : public ::testing::Test {
 protected:
  reads_by_mapping() : content_(2 * window + 10'000, '\0') {
    for (std::size_t i = 0; i < content_.size(); ++i)
      content_[i] = static_cast<char>(i * 31 % 255 + 1);  // no zeros
    fd_ = ::open(folder_.write("file", content_).c_str(), O_RDWR | O_CLOEXEC);
    mapped_ = mapped_reads::make(fd_);
  }
  ~reads_by_mapping() override { (void)::close(fd_); }

  // Whether the mapping served it; then it is what pread says.
  bool read(std::uint64_t offset, std::uint64_t bytes) {
    std::string to(bytes, '\x55'), expected(bytes, '\x55');
    if (!mapped_->read(to.data(), bytes, offset)) return false;
    EXPECT_EQ(pread(fd_, expected.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
    EXPECT_TRUE(to == expected) << bytes << " bytes at " << offset;
    return true;
  }
  void make_ready(std::uint64_t offset) {
    for (std::uint32_t i = 0; i < mapped_reads::reads_before; ++i)
      EXPECT_FALSE(read(offset, 64)) << i;
    EXPECT_TRUE(read(offset, 64));
  }

  // Whether the file's second window is.
  bool in_page_cache() const {
    void* data = mmap(nullptr, window, PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(window));
    std::vector<unsigned char> resident(window / 4096);
    EXPECT_EQ(mincore(data, window, resident.data()), 0);
    (void)munmap(data, window);
    return std::any_of(resident.begin(), resident.end(),
                       [](unsigned char r) { return (r & 1) != 0; });
  }

  const temporary_folder folder_;
  std::string content_;
  int fd_ = -1;
  std::unique_ptr<mapped_reads> mapped_;
};

TEST_F(reads_by_mapping, begin_when_a_window_was_read_often) {
  ASSERT_NE(mapped_, nullptr);
  make_ready(0);
  for (std::uint64_t offset = 0; offset + 4096 <= window; offset += 4096)
    EXPECT_TRUE(read(offset, 4096));
  EXPECT_FALSE(read(window, 4096)) << "another window";
  make_ready(2 * window);
  EXPECT_TRUE(read(2 * window + 1, 9'999)) << "the last one ends with the file";
}

TEST_F(reads_by_mapping, are_not_for_ends_zeros_and_borders) {
  make_ready(0);
  make_ready(window);
  make_ready(2 * window);
  EXPECT_FALSE(read(2 * window + 9'000, 1'001)) << "behind the end";
  EXPECT_FALSE(read(content_.size(), 1));
  EXPECT_FALSE(read(~std::uint64_t{0} - 5, 10));
  EXPECT_FALSE(read(0, 0));
  EXPECT_FALSE(read(window - 1, 2)) << "in two windows";
  folder_.write("file", std::string(1, '\0'), 4095);
  EXPECT_FALSE(read(0, 4096)) << "ends with a zero, which could be behind the end";
  EXPECT_TRUE(read(0, 4097));
}

TEST_F(reads_by_mapping, are_not_for_small_files) {
  folder_.write("small", std::string(mapped_reads::file_bytes_min - 1, 's'));
  const int fd = ::open((folder_ / "small").c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(mapped_reads::make(fd), nullptr);
  (void)::close(fd);
}

TEST_F(reads_by_mapping, are_not_for_what_is_not_in_the_page_cache) {
  ASSERT_EQ(fsync(fd_), 0);
  ASSERT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
  if (in_page_cache()) GTEST_SKIP() << "this file system keeps all in memory";
  std::string to(4096, '\0');
  for (std::uint32_t i = 0; i < 3 * mapped_reads::reads_before; ++i)
    EXPECT_FALSE(mapped_->read(to.data(), 64, 0)) << "after " << i;
  for (std::uint64_t offset = 0; offset < window; offset += to.size())
    ASSERT_EQ(pread(fd_, to.data(), to.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(to.size()));
  bool ready = false;
  for (std::uint32_t i = 0; i < 2 * mapped_reads::reads_before; ++i) ready = read(0, 64);
  EXPECT_TRUE(ready);
}

TEST_F(reads_by_mapping, show_writes_at_once) {
  make_ready(0);
  folder_.write("file", "changed", 5000);
  std::string to(7, '\0');
  ASSERT_TRUE(mapped_->read(to.data(), 7, 5000));
  EXPECT_EQ(to, "changed");
}

TEST_F(reads_by_mapping, of_a_truncated_file_are_those_that_end_before_its_end) {
  constexpr std::uint64_t page = 9 * 4096;
  for (const std::uint64_t end : {page + 1, page + 100, page + 4095, page + 4096, page}) {
    folder_.write("file", content_);
    mapped_ = mapped_reads::make(fd_);
    make_ready(0);
    folder_.truncate("file", end);
    for (std::uint64_t offset = page - 4096; offset <= page + 8192; offset += 512) {
      for (const std::uint64_t bytes : {1, 100, 512, 4096}) {
        const bool served = read(offset, bytes);
        EXPECT_FALSE(served && offset + bytes > end) << bytes << " at " << offset << " of " << end;
      }
    }
    for (std::uint32_t i = 0; i <= mapped_reads::reads_before; ++i) (void)read(0, 64);
    EXPECT_FALSE(read(0, 64)) << "a window that the file does not fill is not mapped";
    folder_.truncate("file", content_.size());
    EXPECT_FALSE(read(page, 4096)) << "zeros now, says pread";
  }
}

TEST_F(reads_by_mapping, of_a_file_that_is_truncated_just_before_the_copy_have_no_zeros) {
  for (const std::uint64_t end : {9 * 4096 + 1, 9 * 4096 + 4095, 9 * 4096, 0}) {
    folder_.write("file", content_);
    mapped_ = mapped_reads::make(fd_);
    make_ready(0);
    int truncations = 0;
    const schedule_hook hook([&](const char* name) {
      if (std::string(name) != "mapped_reads.copy") return;
      folder_.truncate("file", end);
      ++truncations;
    });
    EXPECT_FALSE(read(9 * 4096, 4096));
    EXPECT_EQ(truncations, 1);
  }
}

// While Linux clears what lies behind the new end, in the folio in which the file ends now, the
// bytes there are zeros up to some place, and old behind it. A pread of ext4 shows them as well.
TEST_F(reads_by_mapping, while_the_file_is_truncated_have_no_zeros_but_those_before_old_bytes) {
  std::atomic<bool> done{false}, pause{false};
  std::atomic<std::uint64_t> served{0}, wrong{0}, cut{0};
  std::shared_mutex
      // nobody reads while the file gets longer; what was cut off is missing all that time
      writing;
  std::vector<std::thread> readers;
  for (std::uint64_t t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      std::string to(4096, '\0');
      for (std::uint64_t i = t; !done; i += 7) {
        const std::uint64_t offset = i * 777 % (window - 4096);
        while (pause) std::this_thread::yield();
        const std::shared_lock lock(writing);
        const std::uint64_t cut_before = cut;
        if (!mapped_->read(to.data(), to.size(), offset)) continue;
        ++served;
        for (std::uint64_t k = 0; k < to.size(); ++k) {
          if (to[k] == content_[offset + k]) continue;
          const std::uint64_t at = offset + k;
          const auto is_cleared = [&](std::uint64_t end) {
            return to[k] == 0 && at >= end && to.back() != 0;
          };
          if (!is_cleared(cut_before) && !is_cleared(cut)) ++wrong;
        }
      }
    });
  }
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::uint64_t before = served;
    EXPECT_TRUE(eventually([&] { return served > before + 10; }));
    cut = i * 1237 % window;
    folder_.truncate("file", cut);
    pause = true;  // readers would keep the lock among themselves
    {
      const std::unique_lock lock(writing);
      folder_.write("file", content_);
    }
    pause = false;
  }
  done = true;
  for (std::thread& t : readers) t.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace gpufs::testing

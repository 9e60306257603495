// Writes by mapping: which ones they are, that they leave what pwrite would, and what becomes of
// them when the file changes under them.
#include "backend/mapped_writes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/counted_mapping.hpp"
#include "gpufs/backend.hpp"
#include "support/schedule.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t large = mapped_writes::bytes_min, host_page_bytes = 4096;

// A file in memory, which is a tmpfs's, and one in a folder, opened by the POSIX backend as for a
// mount that writes.
class writes_by_mapping : public ::testing::TestWithParam<bool> {
 protected:
  writes_by_mapping() {
    if (GetParam()) {
      fd_ = memfd_create("gpufs mapped_writes_test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      path_ = "/proc/self/fd/" + std::to_string(fd_);
    } else {
      path_ = folder_.write("file", "");
      fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    }
    fill(std::string(content_bytes, 'o'));
    open();
  }
  ~writes_by_mapping() override { (void)::close(fd_); }

  void open(const posix_backend_options& options = {}) {
    ASSERT_EQ(make_posix_backend(options)->open_to_change(path_, {}, file_), 0);
  }
  void fill(const std::string& content) const {
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    ASSERT_EQ(pwrite(fd_, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  }
  std::string content() const {
    struct stat s{};
    EXPECT_EQ(fstat(fd_, &s), 0);
    std::string all(static_cast<std::size_t>(s.st_size), '\0');
    EXPECT_EQ(pread(fd_, all.data(), all.size(), 0), s.st_size);
    return all;
  }
  // Whether this file system is the one whose files are mapped.
  bool is_known() const {
    struct statfs s{};
    EXPECT_EQ(fstatfs(fd_, &s), 0);
    return s.f_type == 0x0102'1994;
  }
  void write(const std::string& bytes, std::uint64_t offset) const {
    EXPECT_EQ(file_->write(bytes.data(), bytes.size(), offset),
              static_cast<std::int64_t>(bytes.size()));
  }

  static constexpr std::uint64_t content_bytes = 300 * host_page_bytes + 123;
  const temporary_folder folder_;
  std::string path_;
  int fd_ = -1;
  std::unique_ptr<backend_file> file_;
};

INSTANTIATE_TEST_SUITE_P(, writes_by_mapping, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "tmpfs" : "folder"; });

TEST_P(writes_by_mapping, are_large_ones_to_what_the_file_has) {
  std::string expected = content();
  constexpr std::uint64_t border = std::uint64_t{1} << 20;  // of windows
  for (const std::uint64_t offset :
       {std::uint64_t{0}, host_page_bytes, host_page_bytes - 1, 3 * host_page_bytes + 77,
        border - large, border - 100, content_bytes - large}) {
    const std::string bytes(large, static_cast<char>('a' + offset % 26));
    write(bytes, offset);
    expected.replace(offset, bytes.size(), bytes);
    EXPECT_TRUE(content() == expected) << offset;
    EXPECT_EQ(file_->writes_together(), is_known()) << offset;
  }
}

TEST_P(writes_by_mapping, are_not_such_as_make_it_longer) {
  std::string expected = content();
  const std::string bytes(large, 'l');
  for (const std::uint64_t offset :
       {content_bytes - large + 1, content_bytes + 1, content_bytes + 5 * 4096}) {
    write(bytes, offset);
    expected.resize(std::max(expected.size(), offset + large));
    expected.replace(offset, bytes.size(), bytes);
    EXPECT_TRUE(content() == expected) << offset;
    EXPECT_FALSE(file_->writes_together()) << offset;
  }
}

TEST_P(writes_by_mapping, are_not_small_ones) {
  write(std::string(large - 1, 's'), 0);
  EXPECT_FALSE(file_->writes_together());
  EXPECT_EQ(content(), std::string(large - 1, 's') + std::string(content_bytes - large + 1, 'o'));
}

TEST_P(writes_by_mapping, are_none_where_they_are_not_wanted) {
  open({.mapped_writes = false});
  write(std::string(large, 'w'), 0);
  EXPECT_FALSE(file_->writes_together());
}

TEST_P(writes_by_mapping, change_the_files_times) {
  for (int i = 0; i < 3; ++i) {
    const timespec past[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(futimens(fd_, past), 0);
    write(std::string(large, static_cast<char>('a' + i)), 0);
    struct stat s{};
    ASSERT_EQ(fstat(fd_, &s), 0);
    EXPECT_GT(s.st_mtim.tv_sec, 1) << i;
  }
}

TEST_P(writes_by_mapping, are_not_to_holes) {
  ASSERT_EQ(ftruncate(fd_, 0), 0);
  ASSERT_EQ(ftruncate(fd_, content_bytes), 0);
  write(std::string(large, 'h'), host_page_bytes);
  EXPECT_FALSE(file_->writes_together());
  EXPECT_TRUE(content() == std::string(host_page_bytes, '\0') + std::string(large, 'h') +
                               std::string(content_bytes - host_page_bytes - large, '\0'));
}

TEST_P(writes_by_mapping, leave_errors_to_pwrite) {
  if (!GetParam()) return;  // seals are for files in memory
  ASSERT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_WRITE), 0);
  const std::string bytes(large, 'e');
  EXPECT_EQ(file_->write(bytes.data(), bytes.size(), 0), -EPERM);
  EXPECT_EQ(content(), std::string(content_bytes, 'o'));
}

TEST_P(writes_by_mapping, to_a_file_that_becomes_shorter_under_the_copy_come_whole) {
  if (!is_known()) return;
  for (const std::uint64_t end :
       {std::uint64_t{0}, host_page_bytes, 3 * host_page_bytes + 5, large}) {
    fill(std::string(content_bytes, 'o'));
    int truncations = 0;
    const schedule_hook hook([&](const char* name) {
      if (std::string(name) != "mapped_writes.copy" || truncations++ != 0) return;
      EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(end)), 0);
    });
    const std::string bytes(large, 't');
    write(bytes, 2 * host_page_bytes);
    EXPECT_EQ(truncations, 1);
    std::string expected(std::min(end, 2 * host_page_bytes), 'o');
    expected.resize(2 * host_page_bytes, '\0');
    EXPECT_TRUE(content() == expected + bytes) << end;
    EXPECT_FALSE(file_->writes_together());
  }
}

// Each thread has parts of its own, so whatever the order is, they hold what their thread wrote
// last.
TEST_P(writes_by_mapping, of_several_threads_leave_what_each_wrote_last) {
  constexpr std::uint64_t threads = 4, part = 5 * large / 2, parts = 9;
  std::vector<std::string> last(threads * parts, std::string(part, 'o'));
  fill(std::string(threads * parts * part, 'o'));
  std::vector<std::thread> writers;
  for (std::uint64_t t = 0; t < threads; ++t) {
    writers.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t number = random() % parts * threads + t;
        const std::uint64_t bytes = 1 + random() % part, at = random() % (part - bytes + 1);
        const std::string put(bytes, static_cast<char>('a' + random() % 26));
        write(put, number * part + at);
        last[number].replace(at, bytes, put);
      }
    });
  }
  for (std::thread& w : writers) w.join();
  std::string expected;
  for (const std::string& s : last) expected += s;
  EXPECT_TRUE(content() == expected);
}

TEST(mapped_writes, are_not_for_files_that_cannot_be_mapped) {
  const int fd = ::open("/proc/self/comm", O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(mapped_writes::make(fd, 0), nullptr);
  (void)::close(fd);
}

// As many as all mounts together may have; then writes and reads go on without.
TEST_P(writes_by_mapping, are_none_when_there_are_too_many_mappings) {
  std::vector<char*> mappings;
  for (char* data; (data = copy_mapping::make(fd_, host_page_bytes, 0, PROT_READ)) != nullptr;)
    mappings.push_back(data);
  EXPECT_LE(mappings.size(), static_cast<std::size_t>(copy_mapping::most));
  EXPECT_GE(mappings.size(), static_cast<std::size_t>(copy_mapping::most) / 2);
  std::string expected = content();
  write(std::string(large, 'n'), 0);
  EXPECT_FALSE(file_->writes_together());
  EXPECT_TRUE(content() == expected.replace(0, large, large, 'n'));
  for (char* const data : mappings) copy_mapping::end(data, host_page_bytes);
  write(std::string(large, 'm'), 0);
  EXPECT_EQ(file_->writes_together(), is_known());
  EXPECT_TRUE(content() == expected.replace(0, large, large, 'm'));
}

}  // namespace
}  // namespace gpufs::testing

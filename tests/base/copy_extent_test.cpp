// The CPU device's copy out of a mapped file, which may end early.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "gpufs/base/copy.cuh"

namespace gpufs::testing {
namespace {

class mapped_file : public ::testing::Test {
 protected:
  static constexpr std::uint64_t bytes = 16 * 4096;

  mapped_file() : fd_(memfd_create("gpufs copy_extent_test", MFD_CLOEXEC)), content_(bytes) {
    std::iota(content_.begin(), content_.end(), '\0');
    EXPECT_EQ(write(fd_, content_.data(), content_.size()), static_cast<ssize_t>(bytes));
    data_ = static_cast<char*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, 0));
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~mapped_file() override {
    munmap(data_, bytes);
    close(fd_);
  }
  std::uint64_t address(std::uint64_t offset) const {
    return reinterpret_cast<std::uint64_t>(data_ + offset);
  }

  int fd_;
  std::vector<char> content_;
  char* data_ = nullptr;
};

TEST_F(mapped_file, is_copied_at_any_offset) {
  std::vector<char> to(9000);
  for (const std::uint64_t offset : {0, 1, 4095, 4096, 5000}) {
    for (const std::uint64_t n : {1, 511, 4096, 9000}) {
      ASSERT_EQ(copy_from_extent(this_thread(), to.data(), address(offset), n), n);
      ASSERT_TRUE(std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(n),
                             content_.begin() + static_cast<std::ptrdiff_t>(offset)));
    }
  }
}

TEST_F(mapped_file, gives_what_is_left_of_it_when_it_was_truncated) {
  ASSERT_EQ(ftruncate(fd_, 3 * 4096), 0);
  std::vector<char> to(4 * 4096, 'x');
  EXPECT_EQ(copy_from_extent(this_thread(), to.data(), address(4096), to.size()), 2u * 4096);
  EXPECT_TRUE(std::equal(to.begin(), to.begin() + 2 * 4096, content_.begin() + 4096));
  EXPECT_EQ(copy_from_extent(this_thread(), to.data(), address(8 * 4096), 4096), 0u);
}

}  // namespace
}  // namespace gpufs::testing

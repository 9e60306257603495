// Paths with `..` below a root, while other programs rename files. The kernel then cannot tell
// whether the path leads out of the root, and openat2(2) returns EAGAIN.
#include <errno.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "gpufs/backend.hpp"
#include "support/failing_calls.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

class renames : public ::testing::Test {
 protected:
  renames() {
    std::filesystem::create_directory(folder_ / "inner");
    folder_.write("file", "content");
    posix_backend_options options;
    options.root = folder_ / "";
    io_ = make_posix_backend(options);
  }
  int open() const {
    std::unique_ptr<backend_file> file;
    return io_->open("inner/../file", false, file);
  }

  const temporary_folder folder_;
  std::shared_ptr<backend> io_;
};

TEST_F(renames, that_end_soon_do_not_make_an_open_fail) {
  failing_calls renaming("openat2", 1, true, EAGAIN);
  renaming.stop_after(30);
  EXPECT_EQ(open(), 0);
  EXPECT_EQ(failing_calls::strikes_on("openat2"), 30u);
}

TEST_F(renames, that_do_not_end_make_an_open_fail_after_a_while) {
  const failing_calls renaming("openat2", 1, true, EAGAIN);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(open(), -EAGAIN);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  EXPECT_LE(failing_calls::count_of("openat2"), 100u);
}

}  // namespace
}  // namespace gpufs::testing

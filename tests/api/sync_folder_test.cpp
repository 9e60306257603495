// Making names durable.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "api/matrix.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

int error_of(mount& fs, const std::string& folder) {
  try {
    fs.sync_folder(folder);
  } catch (const error& e) {
    EXPECT_EQ(e.path(), folder);
    return e.code().value();
  }
  return 0;
}

TEST(sync_folder_test, asks_the_backend_for_the_folder_and_throws_what_it_says) {
  const temporary_folder folder;
  const auto io = std::make_shared<fault_backend>(make_posix_backend());
  mount_options options = base_options();
  options.backend = io;
  mount fs(options);
  {
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(folder / "new", O_WRONLY | O_CREAT);
    ASSERT_EQ(calls.write(fd, "content", 0), 7);
    ASSERT_EQ(calls.sync(fd), 0);
    ASSERT_EQ(calls.close(fd), 0);
    ASSERT_EQ(calls.rename(folder / "new", folder / "final"), 0);
  }
  EXPECT_EQ(error_of(fs, folder / "."), 0);
  EXPECT_EQ(io->calls(operation::sync_folder), 1u);
  EXPECT_EQ(error_of(fs, folder / "none"), ENOENT);
  EXPECT_EQ(error_of(fs, folder / "final"), ENOTDIR);
  fault failing;
  failing.on = operation::sync_folder;
  failing.error_number = EIO;
  io->add(failing);
  EXPECT_EQ(error_of(fs, folder / "."), EIO);
  io->clear();
  fs.unmount();
  EXPECT_EQ(error_of(fs, folder / "."), 0) << "also after the end";
}

TEST(sync_folder_test, keeps_to_the_root) {
  const temporary_folder outer;
  std::filesystem::create_directories(outer / "root/inner");
  mount_options options = base_options();
  options.root = outer / "root";
  mount fs(options);
  EXPECT_EQ(error_of(fs, "."), 0);
  EXPECT_EQ(error_of(fs, "inner"), 0);
  EXPECT_EQ(error_of(fs, ".."), EXDEV);
  EXPECT_EQ(error_of(fs, outer / "root"), EXDEV);
}

}  // namespace
}  // namespace gpufs::testing

// Files that are not in the host's page cache: reading ahead brings all that was asked for.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "gpufs/backend.hpp"
#include "support/eventually.hpp"
#include "support/service_rig.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t bytes = std::uint64_t{32}
                                << 20;  // far more than Linux reads ahead for one call

class cold_file : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = folder_.write("cold", std::string(bytes, 'c'));
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    const bool has_left = fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
    (void)::close(fd);
    ASSERT_TRUE(has_left);
    ASSERT_EQ(io_->open(path_, false, file_), 0);
    mapping_ = file_->map(0, bytes);
    ASSERT_NE(mapping_, nullptr);
    if (const double share = file_->cached(*mapping_, 0); share > 0.1)
      GTEST_SKIP() << "this file system keeps " << 100 * share
                   << " % in the page cache, whatever it is told";
  }

  const temporary_folder folder_;
  const std::shared_ptr<backend> io_ = make_posix_backend();
  std::string path_;
  std::unique_ptr<backend_file> file_;
  std::unique_ptr<file_mapping> mapping_;
};

TEST_F(cold_file, comes_whole_when_it_is_read_ahead) {
  file_->read_ahead(0, bytes);
  EXPECT_TRUE(eventually([&] { return file_->cached(*mapping_, 0) > 0.99; }, 120s))
      << file_->cached(*mapping_, 0);
}

TEST_F(cold_file, is_registered_as_one_extent) {
  service_rig_options options;
  options.extent_bytes = options.extent_budget_bytes = bytes;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open(path_).handle;
  EXPECT_TRUE(eventually([&] { return rig.read(handle, 0, 4096).extent_bytes == bytes; }, 120s));
}

}  // namespace
}  // namespace gpufs::testing

// Mounts and device memory as C++ objects: moves, and what a mount leaves alone in its process.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/session.hpp"
#include "gpufs/device_array.hpp"
#include "support/child_process.hpp"
#include "support/device.hpp"
#include "support/memory_backend.hpp"

namespace gpufs::testing {
namespace {

class mount_object : public ::testing::Test {
 protected:
  mount_options options() const {
    mount_options o = base_options();
    o.backend = io_;
    return o;
  }
  void expect_works(mount& fs, const std::string& path) {
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path, O_RDWR | O_CREAT);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(calls.write(fd, path, 0), static_cast<std::int64_t>(path.size()));
    EXPECT_EQ(calls.close(fd), 0);
    EXPECT_EQ(io_->content(path), path);
  }
  std::int32_t leave_open(mount& fs, const std::string& path) {
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path, O_RDWR | O_CREAT);
    EXPECT_EQ(calls.write(fd, "left open", 0), 9);
    return fd;
  }
  const std::shared_ptr<memory_backend> io_ =
      std::make_shared<memory_backend>(memory_backend_options{true});
};

TEST_F(mount_object, keeps_files_and_device_memory_when_it_moves) {
  mount first(options());
  const std::int32_t fd = leave_open(first, "a");
  const mount_ref* const handle = first.device_ref();
  void* const memory = first.allocate(64);
  mount second(std::move(first));
  EXPECT_EQ(second.device_ref(), handle);
  expect_works(second, "b");
  {
    session calls(second, group_kind::warp);
    EXPECT_EQ(calls.write(fd, "then", 5), 4) << "a descriptor from before the move";
    EXPECT_EQ(calls.close(fd), 0);
  }
  EXPECT_EQ(io_->content("a"), "left then");
  second.free(memory);
  second.unmount();
}

TEST_F(mount_object, ends_what_was_there_when_another_one_is_assigned) {
  mount a(options()), b(options());
  (void)leave_open(a, "of-a");
  EXPECT_EQ(io_->content("of-a"), "");
  a = std::move(b);
  EXPECT_EQ(io_->content("of-a"), "left open") << "the first mount was unmounted";
  expect_works(a, "of-b");
  mount& itself = a;
  a = std::move(itself);
  expect_works(a, "again");
  b = mount(options());  // one that was moved from
  expect_works(b, "new");
}

TEST_F(mount_object, fits_into_a_vector) {
  std::vector<mount> all;
  for (int i = 0; i < 3; ++i) all.emplace_back(options());
  for (int i = 0; i < 3; ++i)
    expect_works(all[static_cast<std::size_t>(i)], "f" + std::to_string(i));
}

TEST_F(mount_object, device_array_moves_and_refuses_too_many_values) {
  mount fs(options());
  device_array<int> a(fs, std::vector<int>{1, 2, 3}), b(fs, 1);
  int* const data = a.data();
  device_array<int> c(std::move(a));
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.download(), (std::vector<int>{1, 2, 3}));
  b = std::move(c);
  EXPECT_EQ(b.download(), (std::vector<int>{1, 2, 3}));
  b.upload({7});
  EXPECT_EQ(b.download(), (std::vector<int>{7, 2, 3}));
  try {
    b.upload({1, 2, 3, 4});
    FAIL() << "four values in an array of three";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EINVAL);
  }
  EXPECT_EQ(b.download(), (std::vector<int>{7, 2, 3})) << "nothing was copied";
  EXPECT_TRUE(device_array<int>(fs, 0).download().empty());
}

TEST_F(mount_object, raises_the_limit_of_descriptors_only_if_it_may) {
  in_child([this] {
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t hard = limit.rlim_max;
    if (hard < 300) GTEST_SKIP() << "the hard limit is below 300 descriptors";
    limit.rlim_cur = 200;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    mount_options o = options();
    for (const bool raises : {false, true}) {
      o.raises_descriptor_limit = raises;
      mount fs(o);
      expect_works(fs, raises ? "raised" : "kept");
      ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
      EXPECT_EQ(limit.rlim_cur, raises ? hard : 200) << raises;
    }
  });
}

}  // namespace
}  // namespace gpufs::testing

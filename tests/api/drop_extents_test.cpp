// drop_extents() beside a kernel: it waits until the kernel has ended, and holds it up in nothing.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "gpufs/launch.cuh"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

struct reader {
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

TEST(drop_extents, waits_for_a_kernel_that_reads_in_runs) {
  const std::string content(std::size_t{4} << 20, 'e');
  const auto io = std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  io->write("/large", content);
  mount_options options = base_options();
  options.backend = io;
  options.cache_bytes = 4 * content.size();
  options.bulk_bytes = 1 << 18;
  options.extent_bytes = options.extent_budget_bytes = content.size();
  // A wait of one for the other would end with an error, or only after this.
  options.unmount_timeout = std::chrono::seconds(60);
  mount fs(options);
  ASSERT_EQ(fs.bulk_path(), "on");
  std::vector<char> to(content.size());
  std::atomic<bool> has_begun{false}, may_read{false}, drops{false};
  std::atomic<std::int64_t> result{0};
  const auto start = std::chrono::steady_clock::now();
  std::thread kernel(
      [&] { launch(fs, {}, reader{to.data(), to.size(), &has_begun, &may_read, &result}); });
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

}  // namespace
}  // namespace gpufs::testing

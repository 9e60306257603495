#include "guest/guest.hpp"

#include <atomic>
#include <fstream>
#include <iterator>

#include "api/file_world.hpp"
#include "api/script.hpp"
#include "support/device.hpp"

namespace gpufs::testing {

mount_options guest::options() const {
  mount_options o = base_options();
  o.cache_bytes = 64 * o.page_bytes;
  o.workers = GetParam().workers;
  o.maps_files = GetParam().maps_files;
  if (GetParam().has_root) o.root = folder_ / "";
  o.extent_budget_bytes = 16 * o.extent_bytes;
  return o;
}

std::string guest::content(const std::string& name) const {
  std::ifstream in(folder_ / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void guest::use(mount& fs, unsigned round) const {
  const std::string small = self_checking(1, round, 0, 3000),
                    large = self_checking(2, round, 0, 400'000);
  (void)folder_.write("small", small);
  (void)folder_.write("large", large);
  session calls(fs, group_kind::warp);
  const std::int32_t few = calls.open(path("small")), many = calls.open(path("large"));
  ASSERT_GE(few, 0);
  ASSERT_GE(many, 0);
  calls.expect_read(few, small, 0, small.size() + 1);
  // More than the cache, and a part of it so often that it is read from a mapping.
  for (std::int64_t at = 0; at < 400'000; at += 4096) calls.expect_read(many, large, at, 4096);
  const std::int32_t made = calls.open(path("made"), O_RDWR | O_CREAT | O_TRUNC);
  ASSERT_GE(made, 0);
  EXPECT_EQ(calls.write(made, large, 0), 400'000);
  EXPECT_EQ(calls.sync(made), 0);
  EXPECT_EQ(calls.write(made, small, 1000), 3000);
  EXPECT_EQ(calls.truncate(made, 350'000), 0);
  std::string expected = large.substr(0, 350'000);
  expected.replace(1000, 3000, small);
  calls.expect_read(made, expected, 0, 400'000);
  EXPECT_EQ(calls.close(made), 0);
  EXPECT_EQ(calls.rename(path("made"), path("renamed")), 0);
  expect_same_bytes(content("renamed"), expected, "renamed");
  EXPECT_EQ(calls.unlink(path("renamed")), 0);
  EXPECT_EQ(calls.close(few), 0);
  EXPECT_EQ(calls.close(many), 0);
  std::atomic<int> sent{0};
  const std::int32_t sink = fs.open_sink([&](const char*, std::size_t) {
    ++sent;
    return 0;
  });
  EXPECT_EQ(calls.send(sink, "bytes"), 5);
  EXPECT_EQ(sent, 1);
  EXPECT_TRUE(fs.close_sink(sink));
  EXPECT_TRUE(fs.file_errors().errors.empty());
}

}  // namespace gpufs::testing

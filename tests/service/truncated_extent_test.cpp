// A file that is truncated while a part of it is mapped: the CPU device reads what is left, and no
// signal ends the program.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"
#include "support/eventually.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {

struct read_results {
  std::int32_t fd;
  std::int64_t bytes[64];  // per page
  std::uint64_t wrong;
};

static std::uint64_t word_of_file(std::uint64_t i) { return i * 0x9e3779b97f4a7c15ull; }

// Opens the file unless it is open, and reads `count` pages from `first` on.
struct read_pages_kernel {
  const char* path;
  read_results* results;
  std::uint64_t first, count;
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const thread_group g{};
    if (results->fd == 0) results->fd = gopen(g, fs, path);
    std::uint64_t words[512];
    for (std::uint64_t p = 0; p < count; ++p) {
      results->bytes[p] = gread(g, fs, results->fd, words, sizeof words,
                                static_cast<std::int64_t>((first + p) * 4096));
      for (std::int64_t w = 0; w < results->bytes[p] / 8; ++w) {
        if (words[w] != (first + p) * 512 * 0x9e3779b97f4a7c15ull +
                            static_cast<std::uint64_t>(w) * 0x9e3779b97f4a7c15ull)
          ++results->wrong;
      }
    }
  }
};

TEST(truncated_extent, gives_short_reads_and_no_signal) {
  const temporary_folder folder;
  std::string content(64 * 4096, '\0');
  for (std::uint64_t i = 0; i < content.size() / 8; ++i) {
    const std::uint64_t word = word_of_file(i);
    std::memcpy(content.data() + i * 8, &word, 8);
  }
  const std::string path = folder.write("file", content);
  mount_options options = base_options();
  options.cache_bytes = 8 * 4096;
  options.extent_budget_bytes = std::uint64_t{16} << 20;
  options.extent_bytes = std::uint64_t{1} << 20;
  mount m(options);
  if (m.direct_path() != "on") GTEST_SKIP() << "no direct path here: " << m.direct_path();

  read_results results{};
  const auto read = [&](std::uint64_t first, std::uint64_t count) {
    launch(m, {1, 1, 0, nullptr}, read_pages_kernel{path.c_str(), &results, first, count});
  };
  ASSERT_TRUE(eventually([&] {
    read(0, 64);
    return m.stats()[counter::direct_loads] > 0;
  }));
  read(0, 64);
  ASSERT_GE(results.fd, 0);
  for (const std::int64_t n : results.bytes) ASSERT_EQ(n, 4096);

  folder.truncate("file", 32 * 4096 + 100);
  const std::uint64_t direct = m.stats()[counter::direct_loads];
  read(0, 64);
  for (std::uint64_t p = 0; p < 32; ++p) EXPECT_EQ(results.bytes[p], 4096) << "page " << p;
  // The page in which the file ends now is mapped in full, zeros behind the end.
  EXPECT_TRUE(results.bytes[32] >= 100 && results.bytes[32] <= 4096);
  // Those at the end were cached before the truncation, and may be read on.
  for (std::uint64_t p = 33; p < 56; ++p) EXPECT_EQ(results.bytes[p], 0) << "page " << p;
  EXPECT_GT(m.stats()[counter::direct_loads], direct);
  EXPECT_LE(results.wrong, 512u) << "only behind the end, in page 32";
}

}  // namespace gpufs::testing

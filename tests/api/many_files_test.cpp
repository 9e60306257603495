// As many files open at once as was promised, also where the host's own descriptors are far fewer.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "api/stage.hpp"
#include "gpufs/backend.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

// More than 16 bits can number; fewer under a sanitizer, which makes each open slow.
constexpr std::uint32_t file_count = is_sanitized ? 6000 : 65536 + 500;

std::uint64_t content_of(std::uint64_t number) { return number * 0x9e3779b97f4a7c15ull + 1; }

// File number n is called "n" and holds content_of(n): files without number that need no memory.
class numbered_backend final : public backend {
 public:
  int open(const std::string& path, bool, std::unique_ptr<backend_file>& opened) override {
    opened = std::make_unique<file>(std::stoull(path), *this);
    return 0;
  }
  std::size_t open_now() const { return open_now_; }

 private:
  class file final : public backend_file {
   public:
    file(std::uint64_t number, numbered_backend& owner) : number_(number), owner_(owner) {
      ++owner_.open_now_;
    }
    ~file() override { --owner_.open_now_; }
    int identify(file_identity& identity) override {
      identity = {.device = 1,
                  .inode = number_ + 1,
                  .size = 8,
                  .modified_ns = 1,
                  .changed_ns = 1,
                  .mode = S_IFREG | 0444};
      return 0;
    }
    std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
      if (offset >= 8) return 0;
      const std::uint64_t content = content_of(number_);
      const std::uint64_t n = std::min(bytes, 8 - offset);
      std::memcpy(to, reinterpret_cast<const char*>(&content) + offset, n);
      return static_cast<std::int64_t>(n);
    }
    std::unique_ptr<file_mapping> map(std::uint64_t, std::uint64_t) override { return nullptr; }
    double cached(const file_mapping&, std::uint64_t) override { return 1; }
    void read_ahead(std::uint64_t, std::uint64_t) override {}

   private:
    const std::uint64_t number_;
    numbered_backend& owner_;
  };
  std::atomic<std::size_t> open_now_{0};
};

class many_files_test : public ::testing::Test {
 protected:
  static constexpr std::uint32_t groups = 64;

  many_files_test() : io(std::make_shared<numbered_backend>()) {
    options = base_options();
    options.page_bytes = 512;
    options.cache_bytes = 512 * (file_count / 4);  // so most pages are loaded again
    options.channel_slots = 64;
    options.open_files = file_count;
    options.backend = io;
  }

  // Makes one call on each file, spread over the groups; `describe(number)` gives the calls, the
  // last of which counts.
  template <class Describe>
  std::vector<std::int64_t> on_each_file(stage& s, const std::string& input,
                                         const Describe& describe) {
    std::vector<script> scripts(groups);
    std::vector<std::size_t> place(file_count);
    for (std::uint32_t n = 0; n < file_count; ++n) {
      script& of_group = scripts[n % groups];
      for (const device_call& c : describe(n)) of_group.push_back(c);
      place[n] = of_group.size() - 1;
    }
    const performance p = s.run(scripts, input, file_count * sizeof(std::uint64_t));
    output = p.output;
    std::vector<std::int64_t> results(file_count);
    for (std::uint32_t n = 0; n < file_count; ++n)
      results[n] = p.outcomes[n % groups][place[n]].result;
    return results;
  }

  std::shared_ptr<numbered_backend> io;
  mount_options options;
  std::string output;
};

device_call set_register(std::int64_t value) {
  device_call c{action::set};
  c.offset = value;
  return c;
}

TEST_F(many_files_test, all_files_are_open_at_once) {
  mount fs(options);
  stage s(fs, group_kind::warp, groups);
  std::string paths;
  const std::vector<std::int64_t> fds = on_each_file(
      s,
      [&] {
        for (std::uint32_t n = 0; n < file_count; ++n) {
          std::string number = std::to_string(n);
          paths += std::string(7 - number.size(), '0') + number + '\0';
        }
        return paths;
      }(),
      [](std::uint32_t n) {
        device_call open{action::open};
        open.memory = std::uint64_t{n} * 8;
        return script{open};
      });
  std::unordered_set<std::int64_t> different;
  for (std::uint32_t n = 0; n < file_count; ++n) {
    ASSERT_GE(fds[n], 0) << "file " << n;
    different.insert(fds[n]);
  }
  EXPECT_EQ(different.size(), file_count);
  EXPECT_EQ(fs.stats().host_open_files, file_count);
  EXPECT_EQ(fs.file_stats().size(), file_count);

  const std::vector<std::int64_t> read = on_each_file(s, {}, [&](std::uint32_t n) {
    device_call c{action::read};
    c.bytes = 100;
    c.memory = std::uint64_t{n} * 8;
    return script{set_register(fds[n]), c};
  });
  for (std::uint32_t n = 0; n < file_count; ++n) {
    ASSERT_EQ(read[n], 8) << "file " << n;
    std::uint64_t word = 0;
    std::memcpy(&word, output.data() + std::size_t{n} * 8, 8);
    ASSERT_EQ(word, content_of(n)) << "file " << n;
  }

  const std::vector<std::int64_t> closed = on_each_file(
      s, {}, [&](std::uint32_t n) { return script{set_register(fds[n]), {action::close}}; });
  for (std::uint32_t n = 0; n < file_count; ++n) ASSERT_EQ(closed[n], 0) << "file " << n;
  // Nobody waits for the host's close; and what a worker remembers of a file goes when it looks for
  // work the next time.
  for (int i = 0; i < 10000 && (fs.stats().host_open_files != 0 || io->open_now() != 0); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(fs.stats().host_open_files, 0u);
  EXPECT_EQ(io->open_now(), 0u);
  EXPECT_EQ(fs.stats()[counter::opens], file_count);
  EXPECT_EQ(fs.stats()[counter::closes], file_count);
}

}  // namespace
}  // namespace gpufs::testing

// Every option of a mount at its limits: the values next to a limit on its good side work, those on
// its other side are refused.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/matrix.hpp"
#include "mount/plan.hpp"

namespace gpufs::testing {
namespace {

struct option_limits {
  const char* name;  // stands in the message of a refusal
  std::function<void(mount_options&, std::uint64_t)> set;
  std::function<std::uint64_t(const mount_options&)> get;
  std::vector<std::uint64_t> accepted;  // the limits, and what is next to them
  std::vector<std::uint64_t> refused;
  // What else a mount needs to have the value.
  std::function<void(mount_options&)> prepare = [](mount_options&) {};
  bool is_mounted = true;  // false: a mount would need more memory than machines have
};
void PrintTo(const option_limits& o, std::ostream* out) { *out << o.name; }

constexpr std::uint64_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
constexpr std::uint64_t one_second_ns = 1'000'000'000;
constexpr std::uint64_t longest_ns = ~std::uint64_t{0} >> 1;  // one more is a negative time

template <class T>
std::uint64_t as_number(T value) {
  return value;
}
std::uint64_t as_number(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(time.count());
}

template <class T>
option_limits limits_of(const char* name, T mount_options::* option,
                        std::vector<std::uint64_t> accepted, std::vector<std::uint64_t> refused) {
  option_limits o;
  o.name = name;
  o.set = [option](mount_options& options, std::uint64_t value) {
    options.*option = static_cast<T>(value);
  };
  o.get = [option](const mount_options& options) { return as_number(options.*option); };
  o.accepted = std::move(accepted);
  o.refused = std::move(refused);
  return o;
}
option_limits with(option_limits o, std::function<void(mount_options&)> prepare) {
  o.prepare = std::move(prepare);
  return o;
}

std::vector<option_limits> all_limits() {
  using options = mount_options;
  const auto large_pages = [](options& o) {
    o.page_bytes = 2 * MiB;
    o.cache_bytes = 8 * o.page_bytes;
    o.extent_bytes = o.page_bytes;
  };
  option_limits largest_cache =
      limits_of("cache size", &options::cache_bytes,
                {(limits::frames_max - 1) * 512ull, limits::frames_max * 512ull},
                {(limits::frames_max + 1ull) * 512, ~std::uint64_t{0}});
  largest_cache.prepare = [](options& o) { o.page_bytes = 512; };
  largest_cache.is_mounted = false;
  return {
      limits_of("page size", &options::page_bytes, {512, 1 * KiB}, {0, 1, 256, 511, 513, 1023}),
      with(limits_of("page size", &options::page_bytes, {1 * MiB, 2 * MiB},
                     {2 * MiB - 1, 2 * MiB + 1, 4 * MiB}),
           large_pages),
      limits_of("cache size", &options::cache_bytes, {8 * 4096, 9 * 4096}, {1, 4096, 8 * 4096 - 1}),
      largest_cache,
      limits_of("workers", &options::workers, {1, 2, 255, 256}, {257, ~0u}),
      limits_of("channel slots", &options::channel_slots, {1, 2, 4095, 4096}, {4097, ~0u}),
      limits_of("staging size", &options::staging_bytes, {8 * KiB, 16 * KiB, 512 * KiB, 1 * MiB},
                {0, 4 * KiB, 8 * KiB - 1, 8 * KiB + 1, 1 * MiB - 1, 1 * MiB + 1, 2 * MiB}),
      limits_of("write size", &options::write_bytes, {1, 2, 2 * MiB, 4 * MiB},
                {0, 3, 4 * MiB - 1, 4 * MiB + 1, 8 * MiB}),
      limits_of(
          "extent size", &options::extent_bytes, {64 * KiB, 128 * KiB, 1 * GiB, 2 * GiB},
          {0, 4 * KiB, 32 * KiB, 64 * KiB - 1, 64 * KiB + 1, 2 * GiB - 1, 2 * GiB + 1, 4 * GiB}),
      with(
          limits_of("extent size", &options::extent_bytes, {2 * MiB, 4 * MiB}, {64 * KiB, 1 * MiB}),
          large_pages),
      limits_of("extent budget", &options::extent_budget_bytes,
                {0, 1, 64 * KiB, ~std::uint64_t{0} - 1}, {}),
      with(limits_of("bulk size", &options::bulk_bytes, {0, 1, 4096, 8192, 16 * MiB - 1, 16 * MiB},
                     {16 * MiB + 1, 32 * MiB, ~std::uint64_t{0}}),
           [](options& o) {
             o.cache_bytes = 64 * MiB;
             o.extent_bytes = 16 * MiB;
             o.rings = 1;
           }),
      limits_of("rings", &options::rings, {1, 2, 255, 256}, {257, ~0u}),
      limits_of("open files", &options::open_files, {1, 2, 131071, 131072}, {0, 131073, ~0u}),
      limits_of("CPU threads", &options::cpu_threads, {1, 2}, {}),
      limits_of("reclaim timeout", &options::reclaim_timeout, {0, 1, longest_ns},
                {~std::uint64_t{0}, longest_ns + 1}),
      limits_of("unmount timeout", &options::unmount_timeout, {60 * one_second_ns, longest_ns},
                {~std::uint64_t{0}, longest_ns + 1}),
      limits_of("request timeout", &options::request_timeout, {60 * one_second_ns, longest_ns},
                {0, ~std::uint64_t{0}, longest_ns + 1}),
  };
}

mount_options with_option(const option_limits& limits, std::uint64_t value) {
  mount_options options = base_options();
  options.extent_budget_bytes = 64 * MiB;
  limits.prepare(options);
  limits.set(options, value);
  return options;
}

// Reads a file that is there, and writes another one.
void use(const mount_options& asked) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{true});
  const std::string content = self_checking(1, 0, 0, 300'000),
                    more = self_checking(2, 0, 0, 300'000);
  io->write("a", content);
  mount_options options = asked;
  options.backend = io;
  mount fs(options);
  session calls(fs, group_kind::warp);
  const std::int32_t a = calls.open("a");
  calls.expect_read(a, content, 0, content.size());
  calls.expect_read(a, content, 0, content.size());
  EXPECT_EQ(calls.close(a), 0);
  const std::int32_t b = calls.open("b", O_RDWR | O_CREAT);
  EXPECT_EQ(calls.write(b, more, 0), static_cast<std::int64_t>(more.size()));
  calls.expect_read(b, more, 0, more.size());
  EXPECT_EQ(calls.close(b), 0);
  expect_same_bytes(io->content("b"), more, "what was written");
}

class mount_limits_test : public ::testing::TestWithParam<option_limits> {};
INSTANTIATE_TEST_SUITE_P(options, mount_limits_test, ::testing::ValuesIn(all_limits()),
                         [](const ::testing::TestParamInfo<option_limits>& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name + "_" + std::to_string(info.index);
                         });

TEST_P(mount_limits_test, what_is_within_them_works) {
  for (const std::uint64_t value : GetParam().accepted) {
    SCOPED_TRACE(std::string(GetParam().name) + " " + std::to_string(value));
    const mount_options options = with_option(GetParam(), value);
    if (GetParam().is_mounted) {
      use(options);
      continue;
    }
    mount_options complete_options;
    ASSERT_NO_THROW(complete_options = complete(options, *make_cpu_device(1)));
    EXPECT_EQ(GetParam().get(complete_options), value);
    const arena_layout l = lay_out(complete_options, 1, true, true);
    EXPECT_EQ(l.frame_count * l.page_bytes(), complete_options.cache_bytes);
    EXPECT_GT(l.bucket_count * index_bucket::entry_count, l.frame_count)
        << "a free cell always exists";
    EXPECT_EQ(l.pages + l.frame_count * l.page_bytes(), l.total_bytes);
    EXPECT_LE(l.masks + sizeof(std::uint64_t) * mask_words(l.page_bytes()) * l.frame_count,
              l.pages);
  }
}

TEST_P(mount_limits_test, what_is_beyond_them_is_refused_by_its_name) {
  for (const std::uint64_t value : GetParam().refused) {
    const mount_options options = with_option(GetParam(), value);
    try {
      mount fs(options);
      ADD_FAILURE() << "mounted with a " << GetParam().name << " of " << value;
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EINVAL) << e.what();
      EXPECT_NE(std::string(e.what()).find(GetParam().name), std::string::npos) << e.what();
    }
  }
}

// The longest run that may be asked for comes by one request, and not page by page.
TEST(mount_limits, a_run_of_the_most_bytes_is_loaded_at_once) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{true});
  const std::string content = self_checking(1, 0, 0, 2 * limits::bulk_bytes_max);
  io->write("a", content);
  mount_options options = base_options();
  options.backend = io;
  options.page_bytes = 64 * KiB;
  options.bulk_bytes = limits::bulk_bytes_max;
  options.cache_bytes = 4 * options.bulk_bytes;
  options.extent_bytes = options.bulk_bytes;
  options.extent_budget_bytes = 64 * MiB;
  options.rings = 1;
  mount fs(options);
  if (fs.bulk_path() != "on") GTEST_SKIP() << "no bulk path: " << fs.bulk_path();
  session calls(fs, group_kind::block);
  const std::int32_t fd = calls.open("a");
  EXPECT_EQ(calls.advise(fd, 0, 0, POSIX_FADV_WILLNEED), 0);
  EXPECT_EQ(fs.stats()[counter::bulk_bytes], content.size());
  EXPECT_EQ(fs.stats()[counter::bulk_loads], content.size() / options.page_bytes);
  calls.expect_read(fd, content, static_cast<std::int64_t>(content.size() - 100'000), 100'000);
  // A request for each run, and one to open.
  EXPECT_EQ(fs.stats()[counter::rpcs], 3u);
}

}  // namespace
}  // namespace gpufs::testing

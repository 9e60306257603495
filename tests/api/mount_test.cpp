// Mounts: their options, what they leave behind, and what they count.
#include <dirent.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

struct wrong_option {
  const char* name;  // stands in the message
  std::function<void(mount_options&)> set;
};

const std::vector<wrong_option>& wrong_options() {
  static const std::vector<wrong_option> all = {
      {"page size", [](mount_options& o) { o.page_bytes = 256; }},
      {"page size", [](mount_options& o) { o.page_bytes = 0; }},
      {"page size", [](mount_options& o) { o.page_bytes = 5000; }},
      {"page size", [](mount_options& o) { o.page_bytes = std::uint64_t{4} << 20; }},
      {"cache size", [](mount_options& o) { o.cache_bytes = 7 * 4096; }},
      {"cache size", [](mount_options& o) { o.cache_bytes = 1; }},
      {"workers", [](mount_options& o) { o.workers = 257; }},
      {"root: an empty path", [](mount_options& o) { o.root = ""; }},
      {"channel slots", [](mount_options& o) { o.channel_slots = 4097; }},
      {"staging size", [](mount_options& o) { o.staging_bytes = 4096; }},
      {"staging size", [](mount_options& o) { o.staging_bytes = 10000; }},
      {"staging size", [](mount_options& o) { o.staging_bytes = 2u << 20; }},
      {"extent size", [](mount_options& o) { o.extent_bytes = 32768; }},
      {"extent size", [](mount_options& o) { o.extent_bytes = 100000; }},
      {"extent size", [](mount_options& o) { o.extent_bytes = std::uint64_t{4} << 30; }},
      {"extent size",
       [](mount_options& o) {
         o.page_bytes = 131072;
         o.cache_bytes = 16 * 131072;
         o.extent_bytes = 65536;
       }},
      {"rings", [](mount_options& o) { o.rings = 257; }},
      {"open files", [](mount_options& o) { o.open_files = 0; }},
      {"open files", [](mount_options& o) { o.open_files = 131073; }},
  };
  return all;
}

TEST(mount_test, an_impossible_option_is_refused_by_its_name) {
  for (const wrong_option& wrong : wrong_options()) {
    mount_options options = base_options();
    wrong.set(options);
    try {
      mount fs(options);
      ADD_FAILURE() << "mounted with an impossible " << wrong.name;
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EINVAL);
      EXPECT_NE(std::string(e.what()).find(wrong.name), std::string::npos) << e.what();
    }
  }
}

TEST(mount_test, the_smallest_mount_works) {
  const auto files = file_world::make(source::memory);
  const std::string content = self_checking(1, 0, 0, 50000);
  files->write("a", content);
  mount_options options = base_options();
  options.backend = files->io();
  options.page_bytes = 512;
  options.cache_bytes = 8 * 512 + 100;  // rounded down
  options.workers = 1;
  options.channel_slots = 1;
  options.open_files = 1;
  options.cpu_threads = 1;
  mount fs(options);
  EXPECT_EQ(fs.options().cache_bytes, 8u * 512);
  session s(fs, group_kind::warp);
  const std::int32_t fd = s.open(files->path("a"));
  s.expect_read(fd, content, 0, content.size());
  EXPECT_EQ(s.close(fd), 0);
}

TEST(mount_test, the_largest_pages_work) {
  const auto files = file_world::make(source::memory);
  const std::string content = self_checking(1, 0, 0, (std::size_t{5} << 20) + 12345);
  files->write("a", content);
  mount_options options = base_options();
  options.backend = files->io();
  options.page_bytes = std::uint64_t{2} << 20;
  options.cache_bytes = 8 * options.page_bytes;
  options.extent_bytes = options.page_bytes;
  options.staging_bytes = 1u << 20;
  mount fs(options);
  session s(fs, group_kind::block);
  const std::int32_t fd = s.open(files->path("a"));
  s.expect_read(fd, content, 100, content.size());
}

TEST(mount_test, options_left_open_are_filled_in) {
  mount_options options;
  options.device = device();
  options.cache_bytes = std::uint64_t{1} << 20;
  options.open_files = 16;
  mount fs(options);
  EXPECT_EQ(fs.device(), device());
  EXPECT_GE(fs.options().workers, 1u);
  EXPECT_GE(fs.options().channel_slots, 64u);
  EXPECT_GE(fs.options().rings, 1u);
  EXPECT_NE(fs.options().backend, nullptr);
  EXPECT_GE(fs.multiprocessors(), 1u);
  EXPECT_FALSE(fs.device_name().empty());
}

TEST(mount_test, the_direct_path_says_why_it_is_off) {
  mount fs(base_options());
  EXPECT_NE(fs.direct_path().find("budget"), std::string::npos) << fs.direct_path();
}

TEST(mount_test, a_gpu_that_is_not_there_is_an_error) {
  mount_options options = base_options();
  options.device = device_kind::cuda;
  options.ordinal = 1000;
  try {
    mount fs(options);
    ADD_FAILURE() << "mounted on a GPU that is not there";
  } catch (const error& e) {
    EXPECT_TRUE(e.code().value() == ENODEV || e.code().value() == ENOTSUP) << e.what();
  }
}

TEST(mount_test, every_counter_has_a_name_of_its_own) {
  std::set<std::string> names;
  for (std::uint32_t c = 0; c < counter_count; ++c)
    names.insert(statistics::name(static_cast<counter>(c)));
  EXPECT_EQ(names.size(), counter_count);
}

TEST(mount_test, a_file_can_be_registered_ahead_and_dropped_again) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{true});
  const std::string content = self_checking(1, 0, 0, 200000);
  io->write("a", content);
  mount_options options = base_options();
  options.backend = io;
  options.cache_bytes = 8 * 4096;
  options.extent_budget_bytes = std::uint64_t{1} << 20;
  mount fs(options);
  if (fs.direct_path() != "on") GTEST_SKIP() << "no direct path: " << fs.direct_path();
  try {
    (void)fs.register_file("nothing");
    ADD_FAILURE() << "registered a file that is not there";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), ENOENT);
    EXPECT_EQ(e.path(), "nothing");
  }
  EXPECT_EQ(fs.register_file("a"), content.size());
  EXPECT_EQ(fs.register_file("a"), content.size()) << "a second time changes nothing";
  EXPECT_EQ(fs.stats().extents_registered, 4u);
  EXPECT_EQ(fs.stats().host_open_files, 0u);

  session s(fs, group_kind::warp);
  const std::int32_t fd = s.open("a");
  ASSERT_EQ(fs.file_stats().size(), 1u);
  EXPECT_EQ(fs.file_stats().front().extents, 4u);
  s.expect_read(fd, content, 0, content.size());
  EXPECT_EQ(fs.stats()[counter::staged_loads], 4u)
      << "one for each extent, which tells where it is";
  EXPECT_EQ(fs.stats()[counter::direct_loads], 49u - 4u);
  EXPECT_EQ(fs.file_stats().front().page_loads, 49u);
  EXPECT_EQ(fs.file_stats().front().direct_loads, 49u - 4u);

  fs.drop_extents();
  EXPECT_EQ(fs.stats().extent_bytes, 0u);
  EXPECT_EQ(fs.file_stats().front().extents, 0u);
  s.expect_read(fd, content, 0, 30000);
  EXPECT_GT(fs.stats()[counter::staged_loads], 4u);
}

TEST(mount_test, what_does_not_fit_the_budget_stays_staged) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{true});
  const std::string content = self_checking(1, 0, 0, 300000);
  io->write("a", content);
  mount_options options = base_options();
  options.backend = io;
  options.extent_budget_bytes = 150000;
  mount fs(options);
  if (fs.direct_path() != "on") GTEST_SKIP() << "no direct path: " << fs.direct_path();
  EXPECT_LE(fs.register_file("a"), 150000u);
  EXPECT_EQ(fs.stats().extents_registered, 2u);
  session s(fs, group_kind::warp);
  s.expect_read(s.open("a"), content, 0, content.size());
  EXPECT_LE(fs.stats().extent_bytes, 150000u);
  EXPECT_GT(fs.stats().extents_refused, 0u);
}

std::size_t entries_of(const char* folder) {
  std::size_t n = 0;
  DIR* d = opendir(folder);
  while (readdir(d) != nullptr) ++n;
  closedir(d);
  return n;
}

TEST(mount_test, unmounting_leaves_no_descriptor_and_no_thread) {
  const auto files = file_world::make(source::posix);
  const std::string content = self_checking(1, 0, 0, 200000);
  files->write("a", content);
  files->write("b", content);
  mount_options options = base_options();
  options.extent_budget_bytes = std::uint64_t{1} << 20;
  const auto use = [&] {
    mount fs(options);
    session s(fs, group_kind::warp);
    const std::int32_t a = s.open(files->path("a"));
    const std::int32_t b = s.open(files->path("b"));
    s.expect_read(a, content, 0, 100000);
    EXPECT_GT(s.map(b, 0, 10).result, 0);
    EXPECT_EQ(s.close(b), 0);
    // `a` and the mapping are left as they are.
  };
  use();  // the first one starts the GPU
  const std::size_t descriptors = entries_of("/proc/self/fd");
  const std::size_t threads = entries_of("/proc/self/task");
  constexpr std::size_t rounds = 20;
  for (std::size_t i = 0; i < rounds; ++i) use();
  // Fewer than one a round: a GPU's driver has some of its own, which come and go. A thread is gone
  // a little after its join.
  EXPECT_LT(entries_of("/proc/self/fd"), descriptors + rounds / 2);
  wait_until([&] { return entries_of("/proc/self/task") < threads + rounds / 2; });
  EXPECT_LT(entries_of("/proc/self/task"), threads + rounds / 2);
}

// The threads of this process, each with whether it blocks SIGUSR1. Without a thread that ends
// meanwhile: Linux then shows no threads and no blocked signals.
std::map<std::string, int> threads_that_block() {
  std::map<std::string, int> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line == "Threads:\t0") break;
      if (line.starts_with("SigBlk:"))
        threads[task.path()] = (std::stoull(line.substr(7), nullptr, 16) >> (SIGUSR1 - 1)) & 1;
    }
  }
  return threads;
}

TEST(mount_test, threads_of_a_large_copy_take_no_signals_of_the_program) {
  mount fs(base_options());
  std::vector<char> bytes(std::size_t{64} << 20, 'c');
  device_array<char> there(fs, bytes.size());
  const auto copy = [&] {
    fs.copy_to_device(there.data(), bytes.data(), bytes.size());
    fs.copy_to_host(bytes.data(), there.data(), bytes.size());
  };
  copy();  // the first one starts threads of the driver
  std::atomic<bool> is_done{false};
  std::map<std::string, int> seen;
  std::thread watcher([&] {
    while (!is_done) {
      // A thread that has just been created blocks all signals for a moment.
      for (const auto& [thread, blocks] : threads_that_block())
        seen.emplace(thread, 1).first->second &= blocks;
    }
  });
  const auto before = threads_that_block();
  for (int i = 0; i < 8; ++i) copy();
  is_done = true;
  watcher.join();
  for (const auto& [thread, blocks] : seen)
    EXPECT_TRUE(blocks != 0 || before.contains(thread)) << thread;
}

// Whether a file is mapped into this process.
bool is_mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(path)) return true;
  }
  return false;
}

TEST(mount_test, files_are_mapped_only_if_the_program_lets_them) {
  const auto files = file_world::make(source::posix);
  const std::string content(std::size_t{1} << 20, 'x');
  files->write("a", content);
  for (const bool maps : {true, false}) {
    mount_options options = base_options();
    options.cache_bytes = 8 * 4096;  // so that every read is a load
    options.bulk_bytes = 0;
    options.maps_files = maps;
    mount fs(options);
    session s(fs, group_kind::block);
    const std::int32_t fd = s.open(files->path("a"));
    for (int i = 0; i < 3; ++i) s.expect_read(fd, content, 0, content.size());
    EXPECT_EQ(is_mapped(files->path("a")), maps);
  }
}

TEST(mount_test, unmounting_closes_the_files_that_are_open) {
  const auto io = std::make_shared<memory_backend>();
  io->write("a", "a");
  io->write("b", "b");
  {
    mount_options options = base_options();
    options.backend = io;
    mount fs(options);
    session s(fs, group_kind::thread);
    ASSERT_GE(s.open("a"), 0);
    ASSERT_GE(s.open("b"), 0);
    EXPECT_EQ(io->open_now(), 2u);
  }
  EXPECT_EQ(io->open_now(), 0u);
}

TEST(mount_test, device_memory_can_be_filled_and_read) {
  mount fs(base_options());
  const std::vector<std::uint64_t> values = {1, 2, 3, ~std::uint64_t{0}};
  const device_array<std::uint64_t> buffer(fs, values);
  EXPECT_EQ(buffer.download(), values);
  const device_array<std::uint64_t> zeroed(fs, 100);
  EXPECT_EQ(zeroed.download(), std::vector<std::uint64_t>(100, 0));
}

TEST(mount_test, large_copies_arrive_whole_from_several_threads_at_once) {
  mount fs(base_options());
  constexpr std::size_t limit =
      (std::size_t{4} << 20) / sizeof(std::uint64_t);  // from which on threads copy
  std::vector<std::jthread> pool;
  for (const std::size_t count : {limit - 1, limit, 2 * limit + 12'345}) {
    pool.emplace_back([&fs, count] {
      std::vector<std::uint64_t> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = (i + count) * 0x9e37'79b9'7f4a'7c15;
      const device_array<std::uint64_t> buffer(fs, values);
      EXPECT_TRUE(buffer.download() == values) << count;
    });
  }
}

// Nothing outside of the root, by whatever path; and all that is in it.
TEST(mount_test, the_handle_is_in_device_memory_too) {
  mount fs(base_options());
  const mount_ref* const on_device = fs.device_ref();
  EXPECT_EQ(on_device, fs.device_ref());
  mount_ref copy{};
  fs.copy_to_host(&copy, on_device, sizeof copy);
  const mount_ref ref = fs.ref();
  EXPECT_EQ(copy.arena, ref.arena);
  EXPECT_EQ(copy.layout.total_bytes, ref.layout.total_bytes);
  EXPECT_EQ(copy.channel.base, ref.channel.base);
  EXPECT_EQ(copy.timeouts.request_ns, ref.timeouts.request_ns);
  EXPECT_EQ(copy.path_key[1], ref.path_key[1]);
}

TEST(mount_test, a_root_is_not_left) {
  const temporary_folder outer;
  std::filesystem::create_directories(outer / "root/inner");
  (void)outer.write("secret", "not for you");
  (void)outer.write("root/a", "hello");
  (void)outer.write("root/inner/b", "world");
  std::filesystem::create_symlink("../secret", outer / "root/out");
  std::filesystem::create_symlink(outer / "secret", outer / "root/absolute");
  std::filesystem::create_symlink("inner/b", outer / "root/in");
  std::filesystem::create_directory_symlink("..", outer / "root/up");
  mount_options options = base_options();
  options.root = outer / "root";
  options.workers = 4;
  mount fs(options);
  session calls(fs, group_kind::thread);
  for (const std::string path :
       {"../secret", "inner/../../secret", "out", "absolute", "up/secret", "/", "/etc/passwd"}) {
    EXPECT_EQ(calls.open(path), -EXDEV) << path;
    EXPECT_EQ(calls.open(path, O_RDWR | O_CREAT), -EXDEV) << path;
  }
  EXPECT_EQ(calls.open(outer / "root/a"), -EXDEV) << "also where it leads back";
  EXPECT_EQ(calls.open("../new", O_RDWR | O_CREAT), -EXDEV);
  EXPECT_EQ(calls.unlink("../secret"), -EXDEV);
  EXPECT_EQ(calls.unlink("up/secret"), -EXDEV);
  EXPECT_EQ(calls.rename("a", "../a"), -EXDEV);
  EXPECT_EQ(calls.rename("../secret", "b"), -EXDEV);
  EXPECT_EQ(calls.unlink("inner/.."), -EINVAL);
  calls.expect_read(calls.open("a"), "hello", 0, 10);
  calls.expect_read(calls.open("inner/../a"), "hello", 0, 10);
  calls.expect_read(calls.open("in"), "world", 0, 10);
  const std::int32_t fd = calls.open("inner/new", O_WRONLY | O_CREAT);
  EXPECT_EQ(calls.write(fd, "new", 0), 3);
  EXPECT_EQ(calls.close(fd), 0);
  EXPECT_EQ(calls.rename("inner/new", "moved"), 0);
  calls.expect_read(calls.open("moved"), "new", 0, 10);
  EXPECT_EQ(calls.unlink("moved"), 0);
  EXPECT_EQ(calls.open("moved"), -ENOENT);
  EXPECT_TRUE(std::filesystem::exists(outer / "secret"));

  options.root = outer / "none";
  EXPECT_THROW(mount{options}, error);
  options.root = outer / "secret";
  EXPECT_THROW(mount{options}, error);
}

// A setting that was left empty must not serve every file of the host.
TEST(mount_test, a_backend_refuses_an_empty_root_too) {
  posix_backend_options options;
  options.root = "";
  try {
    (void)make_posix_backend(options);
    FAIL() << "it was taken";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EINVAL);
    EXPECT_NE(std::string(e.what()).find("root: an empty path"), std::string::npos) << e.what();
  }
}

// As the process's umask and the file's permissions have it.
TEST(mount_test, modes_are_honoured) {
  const temporary_folder folder;
  mount fs(base_options());
  session calls(fs, group_kind::thread);
  const mode_t before = umask(027);
  const std::int32_t fd = calls.open(folder / "new", O_RDWR | O_CREAT, 0777);
  (void)umask(before);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(calls.status(fd).status.mode & 0777, 0750u);
  EXPECT_EQ(std::filesystem::status(folder / "new").permissions(), std::filesystem::perms{0750});
  EXPECT_EQ(calls.close(fd), 0);
  if (geteuid() == 0) return;  // may read and write everything
  (void)folder.write("closed", std::string(5000, 'c'));
  std::filesystem::permissions(folder / "closed", std::filesystem::perms{0200});
  EXPECT_EQ(calls.open(folder / "closed", O_RDWR), -EACCES);
  const std::int32_t writer = calls.open(folder / "closed", O_WRONLY);
  EXPECT_EQ(calls.write(writer, "written", 4090), 7) << "what cannot be read needs not be fetched";
  EXPECT_EQ(calls.close(writer), 0);
}

// The kernel would end the program with SIGXFSZ, which is not for the service's threads to bring
// upon it.
TEST(mount_test, a_limit_of_file_size_reaches_who_syncs) {
  const temporary_folder folder;
  mount fs(base_options());
  session calls(fs, group_kind::thread);
  rlimit limit{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 10000;
  const std::int32_t fd = calls.open(folder / "new", O_RDWR | O_CREAT);
  ASSERT_EQ(calls.write(fd, std::string(20000, 'x'), 0), 20000);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_EQ(calls.sync(fd), -EFBIG);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(calls.sync(fd), 0);
  EXPECT_EQ(calls.close(fd), 0);
  EXPECT_EQ(std::filesystem::file_size(folder / "new"), 20000u);
}

}  // namespace
}  // namespace gpufs::testing

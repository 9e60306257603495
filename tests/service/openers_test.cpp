// Openers and workers: who serves what, and where the descriptors are of files that openers open.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/descriptor_table.hpp"
#include "backend/posix_backend.hpp"
#include "gpufs/gpufs.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

long this_thread() { return syscall(SYS_gettid); }

// Notes the threads that enter as openers.
class watched_backend final : public backend {
 public:
  explicit watched_backend(std::shared_ptr<backend> wrapped) : wrapped_(std::move(wrapped)) {}
  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override {
    return wrapped_->open(path, no_follow, file);
  }
  std::unique_ptr<descriptor_table_guard> enter_opener() override {
    const std::lock_guard lock(mutex_);
    openers_.insert(this_thread());
    return nullptr;
  }
  std::set<long> openers() const {
    const std::lock_guard lock(mutex_);
    return openers_;
  }

 private:
  const std::shared_ptr<backend> wrapped_;
  mutable std::mutex mutex_;
  std::set<long> openers_;
};

class kinds_of_threads : public ::testing::Test {
 protected:
  kinds_of_threads() {
    memory_->write("/a", std::string(50'000, 'a'));
    memory_->write("/small", "few bytes");
  }
  static service_rig_options with_workers(unsigned workers) {
    service_rig_options options;
    options.workers = workers;
    options.slots = 16;
    options.timeouts = {100'000'000'000};  // a long wait fails the test
    return options;
  }
  // As channel_client::post, without the wake-up: so a GPU posts.
  static std::uint32_t post_silently(service_rig& rig, channel_client& client, const request& r,
                                     std::string_view staging) {
    const channel_view view = rig.memory().view();
    const auto slot = static_cast<std::uint32_t>(client.acquire());
    std::copy(staging.begin(), staging.end(), view.staging(slot));
    const std::uint32_t sequence = rig.memory().record(slot).sequence.load_relaxed() + 1;
    rig.memory().record(slot).sequence.store_relaxed(sequence);
    view.request(slot).store(r, sequence);
    view.bell(slot).store_release(sequence);
    return slot;
  }
  // Calls that wait at a gate until they may go on.
  struct gate {
    std::atomic<int> there{0};
    std::atomic<bool> open{false};
    std::function<void()> wait() {
      return [this] {
        ++there;
        while (!open) std::this_thread::sleep_for(1ms);
      };
    }
  };
  // Six calls, of which two hang in the backend as long as this lives: both threads of a kind.
  class stuck_calls {
   public:
    template <class Call>
    stuck_calls(fault_backend& io, operation on, const std::string& path, const Call& call) {
      io.add({.on = on, .path = path, .before = gate_.wait()});
      for (int i = 0; i < 6; ++i) threads_.emplace_back(call);
      EXPECT_TRUE(eventually([&] { return gate_.there >= 2; }));
    }
    ~stuck_calls() {
      gate_.open = true;
      for (std::thread& t : threads_) t.join();
    }
    stuck_calls(const stuck_calls&) = delete;
    stuck_calls& operator=(const stuck_calls&) = delete;
    int there() const { return gate_.there; }

   private:
    gate gate_;
    std::vector<std::thread> threads_;
  };

  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<watched_backend> watched_ = std::make_shared<watched_backend>(memory_);
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(watched_);
};

TEST_F(kinds_of_threads, openers_open_and_workers_read) {
  std::mutex mutex;
  std::set<long> opened, read;
  io_->add({.on = operation::open, .before = [&] {
              const std::lock_guard lock(mutex);
              opened.insert(this_thread());
            }});
  io_->add({.on = operation::read, .path = "/a", .before = [&] {
              const std::lock_guard lock(mutex);
              read.insert(this_thread());
            }});
  service_rig rig(io_, with_workers(3));
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 6; ++c) {
    clients.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const std::uint64_t handle = rig.open("/a").handle;
        EXPECT_EQ(rig.read(handle, 100, 10).bytes, "aaaaaaaaaa");
        EXPECT_EQ(rig.close(handle).result, 0);
      }
    });
  }
  for (std::thread& t : clients) t.join();
  const std::set<long> openers = watched_->openers();
  EXPECT_EQ(openers.size(), 3u);
  EXPECT_TRUE(std::includes(openers.begin(), openers.end(), opened.begin(), opened.end()));
  for (const long thread : read) EXPECT_FALSE(openers.contains(thread));
  EXPECT_TRUE(eventually([&] { return rig.workers().served_count() >= 6u * 50 * 3; }));
  EXPECT_EQ(rig.workers().served_count(), 6u * 50 * 3);
  EXPECT_EQ(rig.files().open_count(), 0u);
}

TEST_F(kinds_of_threads, workers_that_all_hang_do_not_keep_openers_from_answering) {
  service_rig rig(io_, with_workers(2));
  const std::uint64_t handle = rig.open("/a").handle;
  const stuck_calls stuck(*io_, operation::read, "/a",
                          [&] { EXPECT_EQ(rig.read(handle, 0, 10).result, 10); });
  for (int i = 0; i < 20; ++i) {
    const rig_reply r = rig.open("/small");
    EXPECT_EQ(r.size, 9u);
    EXPECT_EQ(rig.close(r.handle).result, 0);
  }
  EXPECT_EQ(stuck.there(), 2) << "somebody else read";
}

TEST_F(kinds_of_threads, openers_that_all_hang_do_not_keep_workers_from_answering) {
  service_rig rig(io_, with_workers(2));
  const std::uint64_t handle = rig.open("/a").handle;
  const stuck_calls stuck(*io_, operation::open, "/small",
                          [&] { EXPECT_EQ(rig.open("/small").size, 9u); });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(rig.read(handle, 0, 10).result, 10);
  EXPECT_EQ(stuck.there(), 2) << "somebody else opened";
}

TEST_F(kinds_of_threads, without_openers_the_service_is_dead) {
  service_rig rig(io_, with_workers(2));
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::open, .worker_death = true});
  EXPECT_EQ(rig.open("/small").result, -EIO);
  EXPECT_EQ(rig.read(handle, 0, 10).result, 10) << "one is left";
  EXPECT_EQ(rig.open("/small").result, -EIO);
  EXPECT_TRUE(eventually([&] {
    return rig.memory().view().reply(0).service.load_relaxed() ==
           static_cast<std::uint32_t>(service_phase::dead);
  }));
  const std::uint64_t start = platform::now_ns();
  EXPECT_EQ(rig.open("/small").result, -EIO);
  EXPECT_LT(platform::now_ns() - start, 20'000'000'000u);
}

TEST_F(kinds_of_threads, without_the_kind_of_openers_workers_do_all) {
  service_rig_options options = with_workers(2);
  options.openers = false;
  service_rig rig(io_, options);
  for (const auto pause : {0ms, 30ms, 1200ms}) {
    std::this_thread::sleep_for(pause);
    const rig_reply r = rig.open("/a");
    EXPECT_EQ(r.result, 0);
    EXPECT_EQ(rig.read(r.handle, 0, 10).result, 10);
    EXPECT_EQ(rig.close(r.handle).result, 0);
  }
  EXPECT_TRUE(watched_->openers().empty());
  EXPECT_TRUE(eventually([&] { return rig.workers().served_count() >= 9u; }));
  EXPECT_EQ(rig.workers().served_count(), 9u);
}

// Seconds that threads have run; less than 0 where the kernel does not say.
double seconds_of(const std::set<long>& threads) {
  double seconds = 0;
  for (const long thread : threads) {
    std::ifstream text("/proc/self/task/" + std::to_string(thread) + "/schedstat");
    double ns = 0;
    if (!(text >> ns)) return -1;
    seconds += ns * 1e-9;
  }
  return seconds;
}

TEST_F(kinds_of_threads, requests_for_one_kind_do_not_keep_the_other_awake) {
  service_rig rig(io_, with_workers(4));
  const std::uint64_t handle = rig.open("/a").handle;
  const std::set<long> openers = watched_->openers();
  if (seconds_of(openers) < 0) GTEST_SKIP() << "no times of threads on this system";
  std::atomic<bool> end{false};
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&] {
      while (!end) EXPECT_EQ(rig.read(handle, 0, 10).result, 10);
    });
  }
  std::this_thread::sleep_for(200ms);
  const double before = seconds_of(openers);
  std::this_thread::sleep_for(1s);
  const double used = seconds_of(openers) - before;
  end = true;
  for (std::thread& t : clients) t.join();
  EXPECT_LT(used, 0.1);
}

// A GPU wakes nobody: whoever finds the request for the other kind does.
TEST_F(kinds_of_threads, a_request_that_nobody_woke_anybody_for_is_found_by_its_kind) {
  service_rig rig(io_, with_workers(2));
  const channel_view view = rig.memory().view();
  for (const auto pause : {1ms, 150ms, 1300ms}) {
    std::this_thread::sleep_for(pause);
    channel_client client = rig.client();
    const std::uint64_t start = platform::now_ns();
    const std::uint32_t opened = post_silently(rig, client, {request_code::open, 0, 2, 0}, "/a");
    ASSERT_EQ(client.wait(opened).result, 0);
    const std::uint64_t handle = view.reply(opened).handle.load_relaxed();
    client.release(opened);
    const std::uint32_t read = post_silently(rig, client, {request_code::read, handle, 7, 0}, "");
    EXPECT_EQ(client.wait(read).result, 7);
    client.release(read);
    const std::uint32_t closed =
        post_silently(rig, client, {request_code::close, handle, 0, 0}, "");
    EXPECT_EQ(client.wait(closed).result, 0);
    client.release(closed);
    EXPECT_LT(platform::now_ns() - start, 20'000'000'000u)
        << "after a pause of " << pause.count() << " ms";
  }
}

TEST_F(kinds_of_threads, a_worker_that_hangs_does_not_keep_others_from_getting_up) {
  struct {
    std::chrono::milliseconds before, between;
  } const pauses[] = {{10ms, 10ms}, {1300ms, 5ms}, {1200ms, 5ms}, {1700ms, 5ms}, {1300ms, 300ms}};
  const auto answered_after_ns = [&](const auto& pause) {
    service_rig rig(io_, with_workers(3));
    const std::uint64_t handle = rig.open("/a").handle;
    const std::uint64_t other = rig.open("/small").handle;
    std::this_thread::sleep_for(pause.before);
    gate stop;
    io_->add({.on = operation::read, .path = "/a", .before = stop.wait()});
    channel_client client = rig.client();
    const std::uint32_t stuck = post_silently(rig, client, {request_code::read, handle, 10, 0}, "");
    EXPECT_TRUE(eventually([&] { return stop.there == 1; }));
    std::this_thread::sleep_for(pause.between);
    const std::uint64_t start = platform::now_ns();
    const std::uint32_t read = post_silently(rig, client, {request_code::read, other, 9, 0}, "");
    EXPECT_EQ(client.wait(read).result, 9);
    const std::uint64_t took_ns = platform::now_ns() - start;
    client.release(read);
    stop.open = true;
    EXPECT_EQ(client.wait(stuck).result, 10);
    client.release(stuck);
    io_->clear();
    return took_ns;
  };
  for (const auto& pause : pauses) {
    std::uint64_t shortest_ns =
        ~std::uint64_t{0};  // of several, as this machine may be busy elsewhere
    for (int i = 0; i < 10 && shortest_ns >= 300'000'000; ++i)
      shortest_ns = std::min(shortest_ns, answered_after_ns(pause));
    EXPECT_LT(shortest_ns, 300'000'000u)
        << "after " << pause.before.count() << " and " << pause.between.count() << " ms";
  }
}

// ---- real files, with and without tables of the openers' own

enum class tables { own, not_wanted, no_proc };
void PrintTo(tables t, std::ostream* out) {
  *out << (t == tables::own ? "own" : t == tables::no_proc ? "no_proc" : "off");
}

class openers_descriptors : public ::testing::TestWithParam<tables> {
 protected:
  void SetUp() override {
    if (GetParam() == tables::own && !descriptor_table::can_be_own("/proc"))
      GTEST_SKIP() << "this system has no tables for single threads";
  }
  std::shared_ptr<backend> io() const {
    posix_backend_options options;
    options.own_descriptors = GetParam() != tables::not_wanted;
    return make_posix_backend(options,
                              GetParam() == tables::no_proc ? folder_ / "no-proc" : "/proc");
  }
  static service_rig_options with_workers(unsigned workers) {
    service_rig_options options;
    options.workers = workers;
    return options;
  }
  std::string file(const std::string& name, std::size_t bytes) const {
    std::string content(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i)
      content[i] = static_cast<char>((i * 31 + name.size()) % 255 + 1);
    folder_.write(name, content);
    return content;
  }
  // Descriptors of files in the folder, in the tables of all threads that have one of their own,
  // and in the process's.
  struct counts {
    std::size_t own = 0, process = 0;
  };
  counts open_now() const {
    counts n;
    // What the process's table has, and no other: two tables may look the same but for that.
    const int mark = open((folder_ / "mark").c_str(), O_WRONLY | O_CREAT, 0600);
    EXPECT_GE(mark, 0);
    n.process = links("/proc/self/fd").size() - 1;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      const std::set<std::string> here = links(task.path() / "fd");
      const bool is_own = std::none_of(here.begin(), here.end(),
                                       [](const auto& l) { return l.ends_with("/mark"); });
      if (is_own) n.own += here.size();
    }
    close(mark);
    return n;
  }
  bool all_closed_soon() const {
    return eventually([&] { return open_now().own + open_now().process == 0; }, 3s);
  }

  const temporary_folder folder_;

 private:
  // "number path" of each; nothing of a thread that has just ended.
  std::set<std::string> links(const std::filesystem::path& table) const {
    std::set<std::string> found;
    std::error_code error;
    for (const auto& link : std::filesystem::directory_iterator(table, error)) {
      const std::string to = std::filesystem::read_symlink(link.path(), error).string();
      if (!error && to.starts_with(folder_ / ""))
        found.insert(link.path().filename().string() + " " + to);
    }
    return found;
  }
};
INSTANTIATE_TEST_SUITE_P(, openers_descriptors,
                         ::testing::Values(tables::own, tables::not_wanted, tables::no_proc),
                         [](const auto& p) {
                           return std::string(p.param == tables::own       ? "own_tables"
                                              : p.param == tables::no_proc ? "no_proc"
                                                                           : "not_wanted");
                         });

TEST_P(openers_descriptors, a_small_file_that_comes_with_its_open_is_in_one_table_only) {
  const std::string content = file("small", 5000);
  service_rig rig(io());
  EXPECT_TRUE(rig.open(folder_ / "small", 8192).bytes == content);
  const counts n = open_now();
  EXPECT_EQ(n.own, GetParam() == tables::own ? 1u : 0u);
  EXPECT_EQ(n.process, GetParam() == tables::own ? 0u : 1u);
}

TEST_P(openers_descriptors, are_closed_soon_after_the_file) {
  const std::string content = file("file", 100'000);
  service_rig rig(io(), with_workers(4));
  std::vector<std::thread> clients;
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&] {
      for (std::uint64_t i = 0; i < 100; ++i) {
        const std::uint64_t handle = rig.open(folder_ / "file").handle;
        if (i % 2 == 0) {
          EXPECT_TRUE(rig.read(handle, i * 900, 1000).bytes == content.substr(i * 900, 1000));
        }
        EXPECT_EQ(rig.close(handle).result, 0);
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_TRUE(all_closed_soon()) << open_now().own << " " << open_now().process;
}

TEST_P(openers_descriptors, are_all_closed_when_the_service_has_ended) {
  const std::string content = file("file", 100'000);
  {
    service_rig rig(io(), with_workers(3));
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t handle = rig.open(folder_ / "file").handle;
      if (i % 3 == 0) {
        EXPECT_TRUE(rig.read(handle, 500, 1000).bytes == content.substr(500, 1000));
      }
    }
    EXPECT_GE(open_now().own + open_now().process, 40u);
    // Some that are on their way to the threads that can close them.
    for (int i = 0; i < 10; ++i) {
      const std::uint64_t handle = rig.open(folder_ / "file").handle;
      EXPECT_EQ(rig.read(handle, 500, 1000).result, 1000);
      EXPECT_EQ(rig.close(handle).result, 0);
    }
  }
  EXPECT_EQ(open_now().own, 0u);
  EXPECT_EQ(open_now().process, 0u);
}

TEST_P(openers_descriptors, are_all_closed_after_an_unmount) {
  mount_options options;
  options.device = device_kind::cpu;
  options.cache_bytes = std::uint64_t{1} << 20;
  options.page_bytes = 4096;
  options.open_files = 64;
  options.workers = 4;
  options.backend = io();
  file("file", 100'000);
  {
    mount fs(options);
    EXPECT_GT(fs.register_file(folder_ / "file"), 0u);
  }
  EXPECT_EQ(open_now().own, 0u);
  EXPECT_EQ(open_now().process, 0u);
}

TEST_P(openers_descriptors, workers_read_a_file_that_was_renamed_over_or_removed_since) {
  const std::string replaced = file("replaced", 60'000), removed = file("removed", 60'001),
                    moved = file("moved", 60'002);
  service_rig rig(io());
  const std::uint64_t a = rig.open(folder_ / "replaced").handle,
                      b = rig.open(folder_ / "removed").handle,
                      c = rig.open(folder_ / "moved").handle;
  file("new", 60'000);
  std::filesystem::rename(folder_ / "new", folder_ / "replaced");
  std::filesystem::remove(folder_ / "removed");
  std::filesystem::rename(folder_ / "moved", folder_ / "elsewhere");
  file("moved", 10'000);
  EXPECT_TRUE(rig.read(a, 20'000, 5000).bytes == replaced.substr(20'000, 5000));
  EXPECT_TRUE(rig.read(b, 20'000, 5000).bytes == removed.substr(20'000, 5000));
  EXPECT_TRUE(rig.read(c, 20'000, 5000).bytes == moved.substr(20'000, 5000));
}

// The folder is what is renamed: a file that was itself renamed or removed has another time, and is
// not registered.
TEST_P(openers_descriptors, a_file_whose_path_leads_nowhere_any_more_is_registered) {
  std::filesystem::create_directory(folder_ / "before");
  const std::string content = file("before/file", 150'000);
  service_rig_options options;
  options.extent_budget_bytes = std::uint64_t{1} << 20;
  service_rig rig(io(), options);
  const std::uint64_t handle = rig.open(folder_ / "before/file").handle;
  std::filesystem::rename(folder_ / "before", folder_ / "after");
  rig_reply r;
  EXPECT_TRUE(eventually([&] {
    r = rig.read(handle, 65536, 4096);
    return r.extent_bytes != 0;
  }));
  ASSERT_EQ(r.extent_bytes, 65536u);
  EXPECT_TRUE(std::string(reinterpret_cast<const char*>(r.extent_address), 65536) ==
              content.substr(65536, 65536));
}

TEST_P(openers_descriptors, many_threads_reach_for_a_file_at_once) {
  const std::string content = file("file", 100'000);
  service_rig rig(io(), with_workers(4));
  for (int round = 0; round < 30; ++round) {
    const std::uint64_t handle = rig.open(folder_ / "file").handle;
    std::vector<std::thread> clients;
    for (std::uint64_t c = 0; c < 4; ++c) {
      clients.emplace_back([&, c] {
        EXPECT_TRUE(rig.read(handle, c * 1000, 1000).bytes == content.substr(c * 1000, 1000));
      });
    }
    for (std::thread& t : clients) t.join();
    EXPECT_LE(open_now().process, 1u) << "it was opened more than once, and is still open";
    EXPECT_EQ(rig.close(handle).result, 0);
    ASSERT_TRUE(all_closed_soon());
  }
}

// Tables begin without what the program has open: it would stay open as long as the mount.
TEST_P(openers_descriptors, a_pipe_of_the_program_ends_when_the_program_closes_it) {
  file("file", 5000);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  service_rig rig(io(), with_workers(3));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(rig.open(folder_ / "file", 8192).size, 5000u);
  ASSERT_EQ(close(ends[1]), 0);
  pollfd reader{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&reader, 1, 2000), 1);
  EXPECT_NE(reader.revents & POLLHUP, 0);
  ASSERT_EQ(close(ends[0]), 0);
}

// Lowers the limit for its life.
class few_descriptors {
 public:
  explicit few_descriptors(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{most, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
  }
  ~few_descriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  few_descriptors(const few_descriptors&) = delete;
  few_descriptors& operator=(const few_descriptors&) = delete;

 private:
  rlimit before_{};
};

// The table does not know that there are so few: each open that finds none has to make room.
TEST_P(openers_descriptors, more_files_are_open_than_a_table_has_numbers) {
  constexpr std::size_t count = 400;
  std::vector<std::string> contents;
  for (std::size_t i = 0; i < count; ++i)
    contents.push_back(file("file " + std::to_string(i), 9000 + i));
  const auto use_all = [&](service_rig& rig) {
    std::vector<std::uint64_t> handles;
    for (std::size_t i = 0; i < count; ++i) {
      const rig_reply r = rig.open(folder_ / ("file " + std::to_string(i)));
      ASSERT_EQ(r.result, 0) << i;
      handles.push_back(r.handle);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t f = i * 37 % count;
      const rig_reply r = rig.read(handles[f], 1000, 8000);
      ASSERT_EQ(r.result, 8000) << f;
      ASSERT_TRUE(r.bytes == contents[f].substr(1000, 8000)) << f;
    }
    for (const std::uint64_t handle : handles) ASSERT_EQ(rig.close(handle).result, 0);
    EXPECT_TRUE(all_closed_soon());
  };
  service_rig_options options;
  options.workers = 2;
  // First with descriptors to spare: UBSan looks at the type of an object, the first time that it
  // meets it, by means of a pipe, and takes it for a wrong one where none is to be had.
  options.descriptors_max = 48;
  {
    service_rig rig(io(), options);
    use_all(rig);
  }
  options.descriptors_max = 4096;
  service_rig rig(io(), options);
  const few_descriptors low(64);
  use_all(rig);
}

}  // namespace
}  // namespace gpufs::testing

// Descriptor tables of single threads: what others reach in them, and how long their descriptors
// stay.
#include "backend/descriptor_table.hpp"
#include "backend/closing_thread.hpp"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/closed_streams.hpp"
#include "support/eventually.hpp"
#include "support/failing_calls.hpp"
#include "support/record_lock.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

constexpr int flags = O_RDONLY | O_CLOEXEC;

std::string link_to(long thread, int descriptor) {
  return "/proc/self/task/" + std::to_string(thread) + "/fd/" + std::to_string(descriptor);
}
bool is_open_in(long thread, int descriptor) {
  std::error_code ignored;
  return std::filesystem::is_symlink(
      std::filesystem::symlink_status(link_to(thread, descriptor), ignored));
}

std::string read_all(int descriptor) {
  std::string text(100, '\0');
  const std::int64_t n =
      descriptor_table::of_this_thread().read(descriptor, text.data(), text.size(), 0);
  text.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  return text;
}

// A thread with a table of its own, which does what it is told.
class other_thread {
 public:
  other_thread() : thread_([this] { live(); }) {
    run([this] {
      id_ = syscall(SYS_gettid);
      stay_ = descriptor_table::make_own("/proc");
      table_ = descriptor_table::shared_of_this_thread();
    });
  }
  ~other_thread() {
    run([this] {
      stay_.reset();
      ending_ = true;
    });
    thread_.join();
  }
  other_thread(const other_thread&) = delete;
  other_thread& operator=(const other_thread&) = delete;

  long id() const { return id_; }
  const std::shared_ptr<descriptor_table>& table() const { return table_; }
  // Returns when it is done.
  void run(const std::function<void()>& task) {
    std::unique_lock lock(mutex_);
    task_ = &task;
    changed_.notify_all();
    changed_.wait(lock, [this] { return task_ == nullptr; });
  }
  int open(const std::string& path) {
    int fd = -1;
    run([&] { fd = table_->open(path.c_str(), flags); });
    return fd;
  }
  void end_stay() {
    run([this] { stay_.reset(); });
  }

 private:
  void live() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      changed_.wait(lock, [this] { return task_ != nullptr; });
      (*task_)();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;
  bool ending_ = false;
  long id_ = 0;
  std::unique_ptr<descriptor_table_guard> stay_;
  std::shared_ptr<descriptor_table> table_;
  std::thread thread_;
};

class descriptor_tables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!descriptor_table::can_be_own("/proc"))
      GTEST_SKIP() << "this system has no tables for single threads";
    ASSERT_NE(other_.table(), nullptr);
  }
  const temporary_folder folder_;
  other_thread other_;
};

TEST_F(descriptor_tables,
       a_thread_that_has_its_own_sees_none_of_the_programs_and_the_program_none_of_its) {
  const int outside = ::open(folder_.write("a", "content").c_str(), flags);
  const other_thread later;
  EXPECT_TRUE(is_open_in(getpid(), outside));
  std::error_code not_open;
  EXPECT_NE(std::filesystem::read_symlink(link_to(later.id(), outside), not_open), folder_ / "a");
  for (int i = 0; i < 100; ++i) ASSERT_GE(other_.open(folder_ / "a"), 3);
  EXPECT_FALSE(is_open_in(getpid(), outside + 50));
  EXPECT_EQ(::close(outside), 0);
}

TEST_F(descriptor_tables, others_reach_a_file_that_was_renamed_or_removed_since) {
  const int renamed = other_.open(folder_.write("renamed", "first")),
            removed = other_.open(folder_.write("gone", "second"));
  std::filesystem::rename(folder_ / "renamed", folder_ / "elsewhere");
  folder_.write("renamed", "other");
  std::filesystem::remove(folder_ / "gone");
  for (const auto& [descriptor, content] :
       {std::pair{renamed, "first"}, std::pair{removed, "second"}}) {
    const int fd = other_.table()->reopen(descriptor);
    ASSERT_GE(fd, 0) << std::generic_category().message(-fd);
    EXPECT_EQ(read_all(fd), content);
    EXPECT_EQ(::close(fd), 0);
  }
}

TEST_F(descriptor_tables, what_others_close_is_closed_by_the_thread_itself) {
  const int fd = other_.open(folder_.write("a", "content"));
  std::thread third([&] { other_.table()->close(fd); });
  third.join();
  EXPECT_TRUE(is_open_in(other_.id(), fd)) << "closed by a thread that cannot";
  other_.run([&] { other_.table()->close_handed(); });
  EXPECT_FALSE(is_open_in(other_.id(), fd));
}

TEST_F(descriptor_tables, any_number_of_descriptors_can_be_left_to_be_closed) {
  const std::string path = folder_.write("a", "content");
  std::vector<int> open;
  for (int i = 0; i < 500; ++i) open.push_back(other_.open(path));
  for (const int fd : open) other_.table()->close(fd);
  other_.run([&] { other_.table()->close_handed(); });
  for (const int fd : open) ASSERT_FALSE(is_open_in(other_.id(), fd));
}

TEST_F(descriptor_tables, a_stay_that_ends_closes_all_at_once_and_nobody_reaches_in_any_more) {
  const int fd = other_.open(folder_.write("a", "content"));
  EXPECT_TRUE(is_open_in(other_.id(), fd));
  other_.end_stay();
  EXPECT_FALSE(is_open_in(other_.id(), fd));
  EXPECT_EQ(other_.table()->reopen(fd), -ESTALE);
  other_.table()->close(fd);  // says nothing to anybody
}

// Who has a file open may read it, whatever its mode has become, or the program's rights.
TEST_F(descriptor_tables, a_file_that_may_not_be_opened_any_more_is_reached_all_the_same) {
  const std::string path = folder_.write("a", "content");
  const int fd = other_.open(path);
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const auto thread = static_cast<int>(syscall(434, other_.id(), O_EXCL));
  if (thread < 0) GTEST_SKIP() << "needs Linux 6.9";
  EXPECT_EQ(::close(thread), 0);
  std::string seen;
  int refused = 0;
  // Of this thread only, and for good: nobody but root could open it, if this test runs as root.
  std::thread reader([&] {
    (void)syscall(SYS_setresuid, 65534, 65534, 65534);
    refused = ::open(path.c_str(), flags) < 0 ? errno : 0;
    const int reached = other_.table()->reopen(fd);
    if (reached < 0) return;
    seen = read_all(reached);
    (void)::close(reached);
  });
  reader.join();
  EXPECT_EQ(refused, EACCES);
  EXPECT_EQ(seen, "content");
}

// The file would be one of the program's streams until it gets a higher number. The close of the
// lower number would drop the lock.
TEST_F(descriptor_tables, a_file_that_is_reached_keeps_its_locks_where_the_streams_are_closed) {
  const std::string path = folder_.write("a", "content");
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC), fd = other_.open(path);
  ASSERT_TRUE(set_lock(mine, F_WRLCK));
  int reached = -1;
  bool was_used = false;
  {
    const closed_streams closed;
    reached = other_.table()->reopen(fd);
    was_used = closed_streams::any_is_open();
  }
  EXPECT_GT(reached, 2);
  EXPECT_FALSE(was_used);
  EXPECT_TRUE(is_locked(mine));
  EXPECT_EQ(::close(mine), 0);
  EXPECT_EQ(::close(reached), 0);
}

// As if the program closed a stream while the file is being opened.
TEST(descriptor_table, an_open_drops_no_lock_where_the_streams_are_closed) {
  const temporary_folder folder;
  const std::string path = folder.write("a", "content");
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_TRUE(set_lock(mine, F_WRLCK));
  descriptor_table& table = descriptor_table::of_process();
  const std::size_t kept = table.kept_count();
  int fd = -1;
  bool stays_locked = false;
  {
    const closed_streams closed;
    fd = table.open(path.c_str(), flags);
    stays_locked = is_locked(mine);
    (void)set_lock(mine, F_UNLCK);
    (void)eventually([&] {
      table.close_handed();
      return table.kept_count() == kept;
    });
  }
  EXPECT_GT(fd, 2);
  EXPECT_TRUE(stays_locked);
  EXPECT_EQ(::close(mine), 0);
  EXPECT_EQ(::close(fd), 0);
}

TEST(descriptor_table, closed_streams_stay_occupied_until_the_last_path_descriptor_is_closed) {
  const auto root = [] { return ::open("/", O_PATH | O_CLOEXEC); };
  std::array<int, 2> numbers{};
  std::array<bool, 3> stays_open{};
  bool ends_open = true;
  {
    const closed_streams closed;
    std::optional<path_descriptor> first(std::in_place, root), second(std::in_place, root);
    numbers = {first->number(), second->number()};
    first.reset();
    for (int i = 0; i < 3; ++i) stays_open[static_cast<std::size_t>(i)] = fcntl(i, F_GETFD) >= 0;
    second.reset();
    ends_open = closed_streams::any_is_open();
  }
  for (const int number : numbers) EXPECT_GT(number, 2);
  EXPECT_EQ(stays_open, (std::array{true, true, true}));
  EXPECT_FALSE(ends_open);
}

TEST(descriptor_table, a_forked_child_has_its_streams_closed_while_other_threads_open_files) {
  std::promise<void> occupied, seen;
  int status = -1;
  {
    const closed_streams closed;
    std::thread other([&] {
      const path_descriptor held([] { return ::open("/", O_PATH | O_CLOEXEC); });
      occupied.set_value();
      seen.get_future().wait();
    });
    occupied.get_future().wait();
    const pid_t child = fork();
    if (child == 0) {
      if (closed_streams::any_is_open()) _exit(1);
      {
        const path_descriptor own([] { return ::open("/", O_PATH | O_CLOEXEC); });
      }
      _exit(closed_streams::any_is_open() ? 2 : 0);
    }
    (void)waitpid(child, &status, 0);
    seen.set_value();
    other.join();
  }
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The thread that asks cannot have a table of its own, so that a close would drop the lock.
TEST(descriptor_table, a_report_of_close_that_cannot_be_had_says_so) {
  const temporary_folder folder;
  const int fd = ::open(folder.write("a", "content").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_TRUE(set_lock(fd, F_WRLCK));
  for (const int error_number : {ENOSYS, EPERM}) {
    const failing_calls sandbox("close_range", 1, true, error_number);
    closing_thread other;
    EXPECT_EQ(descriptor_table::of_process().report_close(fd, other), -EAGAIN);
  }
  closing_thread other;
  EXPECT_EQ(descriptor_table::of_process().report_close(fd, other), 0);
  EXPECT_TRUE(is_locked(fd));
  EXPECT_EQ(::close(fd), 0);
}

// A thread that stays must not keep the other end of a program's pipe from seeing its end.
TEST(descriptor_table, a_closing_thread_does_not_keep_the_streams_open) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int before = dup(STDIN_FILENO);
  ASSERT_EQ(dup2(ends[1], STDIN_FILENO), STDIN_FILENO);
  (void)::close(ends[1]);
  const closing_thread other;
  (void)::close(STDIN_FILENO);
  pollfd seen{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&seen, 1, 20'000), 1);
  ASSERT_EQ(dup2(before, STDIN_FILENO), STDIN_FILENO);
  (void)::close(before);
  (void)::close(ends[0]);
}

TEST(descriptor_table, is_not_made_where_others_could_not_reach_in) {
  const temporary_folder empty;
  EXPECT_FALSE(descriptor_table::can_be_own(empty / "no-proc"));
  EXPECT_EQ(descriptor_table::shared_of_this_thread(), nullptr);
}

}  // namespace
}  // namespace gpufs::testing

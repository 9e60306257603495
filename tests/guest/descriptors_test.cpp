// The program's descriptors and locks, beside a mount.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/file_world.hpp"
#include "guest/guest.hpp"
#include "support/closed_streams.hpp"
#include "support/hanging_backend.hpp"

namespace gpufs::testing {
namespace {

// ---- locks

// The exit status of what runs in a child; it must not use threads or allocate much.
template <class Body>
int status_in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct flock lock_of(short type, off_t start, off_t bytes) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_start = start;
  lock.l_len = bytes;
  return lock;
}

class guest_locks : public guest {
 protected:
  // One that is written under, and one that is read under, and the same by flock(2), which knows no
  // processes.
  void take() {
    path_ = folder_.write("database", std::string(300'000, 'd'));
    mine_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    struct flock exclusive = lock_of(F_WRLCK, 100, 100), shared = lock_of(F_RDLCK, 200'000, 1);
    ASSERT_EQ(fcntl(mine_, F_SETLK, &exclusive), 0);
    ASSERT_EQ(fcntl(mine_, F_SETLK, &shared), 0);
    ASSERT_EQ(::flock(mine_, LOCK_EX), 0);
  }
  // Whether another process finds the bytes locked, by this one.
  bool is_locked_for_others(off_t start) const {
    const pid_t self = getpid();
    return status_in_child([&] {
             const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
             struct flock lock = lock_of(F_WRLCK, start, 1);
             if (fd < 0 || fcntl(fd, F_GETLK, &lock) != 0) return 2;
             return lock.l_type != F_UNLCK && lock.l_pid == self ? 1 : 0;
           }) == 1;
  }
  void expect_locked(const char* after) const {
    EXPECT_TRUE(is_locked_for_others(150)) << after;
    EXPECT_TRUE(is_locked_for_others(200'000)) << after;
    EXPECT_FALSE(is_locked_for_others(250)) << after;
    EXPECT_EQ(status_in_child([&] {
                const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
                return ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK ? 1 : 0;
              }),
              1)
        << after;
  }

  std::string path_;
  int mine_ = -1;
};
INSTANTIATE_TEST_SUITE_P(in, guest_locks, ::testing::ValuesIn(guest_settings()),
                         ::testing::PrintToStringParamName());

TEST_P(guest_locks, survive_all_that_a_mount_does_with_the_file) {
  in_child([this] {
    take();
    for (int i = 0; i < 2; ++i) {
      mount fs(options());
      session calls(fs, group_kind::warp);
      expect_locked("a mount");
      std::int32_t fd = calls.open(path("database"));
      ASSERT_GE(fd, 0);
      for (std::int64_t at = 0; at < 300'000; at += 4096) (void)calls.read(fd, at, 4096);
      EXPECT_EQ(calls.close(fd), 0);
      expect_locked("reading");
      fd = calls.open(path("database"), O_RDWR);
      ASSERT_GE(fd, 0);
      EXPECT_EQ(calls.write(fd, std::string(70'000, 'w'), 10), 70'000);
      EXPECT_EQ(calls.sync(fd), 0);
      EXPECT_EQ(calls.truncate(fd, 250'000), 0);
      EXPECT_EQ(calls.close(fd), 0);
      expect_locked("writing");
      if (fs.direct_path() == "on") (void)fs.register_file(path("database"));
      expect_locked("registering");
      fd = calls.open(path("database"), O_WRONLY);
      EXPECT_EQ(calls.write(fd, "left open", 0), 9);
      EXPECT_NO_THROW(fs.unmount());
      expect_locked("unmounting");
    }
    expect_locked("the mount's destruction");
    EXPECT_EQ(content("database").substr(0, 9), "left open");
    // They are the program's still: it can give them back.
    struct flock none = lock_of(F_UNLCK, 0, 0);
    ASSERT_EQ(fcntl(mine_, F_SETLK, &none), 0);
    EXPECT_FALSE(is_locked_for_others(150));
    EXPECT_FALSE(is_locked_for_others(200'000));
  });
}

TEST_P(guest_locks, taken_while_the_mount_has_the_file_open_survive_its_close) {
  in_child([this] {
    const std::string written = folder_.write("database", std::string(300'000, 'd'));
    mount fs(options());
    session calls(fs, group_kind::warp);
    const std::int32_t reads = calls.open(path("database")),
                       writes = calls.open(path("database"), O_RDWR);
    for (std::int64_t at = 0; at < 300'000; at += 4096) (void)calls.read(reads, at, 4096);
    EXPECT_EQ(calls.write(writes, "bytes", 7), 5);
    take();
    EXPECT_EQ(calls.close(writes), 0);
    EXPECT_EQ(calls.close(reads), 0);
    expect_locked("the last close");
    fs.unmount();
    expect_locked("unmounting");
  });
}

// An opener's file is opened once more in the program's table, for the workers. With closed streams
// the lowest free number is one of theirs.
TEST_P(guest_locks, survive_where_the_program_has_closed_its_streams_which_stay_closed) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers open pipes of their own to see what may be read";
#endif
  in_child([this] {
    constexpr int files = 20, threads = 3;
    const std::string content(100'000, 'd'), part = content.substr(0, 8);  // as the locked file's
    for (int i = 0; i < files; ++i) (void)folder_.write("file-" + std::to_string(i), content);
    take();
    std::atomic<bool> is_done{false};
    std::atomic<int> seen{0}, wrong{0};
    bool first_stays = false, second_stays = false;
    {
      const closed_streams closed;
      std::thread program([&] {
        while (!is_done) {
          for (int i = 0; i < 3; ++i) {
            std::string bytes(8, '\0');
            // Not read(): ThreadSanitizer takes it for a race with what others open, which it is.
            // Others open files meanwhile, too: the C library, and a mount that is made.
            if (syscall(SYS_pread64, i, bytes.data(), 8, 50'000) == 8 && bytes == part) ++seen;
          }
        }
      });
      mount fs(options());
      const auto read = [&](session& calls, const std::string& name) {
        const std::int32_t fd = calls.open(path(name));
        const read_answer answer = calls.read(fd, 50'000, 1000);
        if (answer.bytes != content.substr(0, 1000) || calls.close(fd) != 0) ++wrong;
      };
      std::vector<std::thread> users;
      for (int t = 0; t < threads; ++t) {
        users.emplace_back([&, t] {
          session calls(fs, group_kind::warp);
          for (int i = t; i < 5 * files; ++i) read(calls, "file-" + std::to_string(i % files));
        });
      }
      for (std::thread& user : users) user.join();
      session calls(fs, group_kind::warp);
      read(calls, "database");
      first_stays = is_locked_for_others(150);
      second_stays = is_locked_for_others(200'000);
      is_done = true;
      program.join();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(first_stays);
    EXPECT_TRUE(second_stays);
    EXPECT_EQ(seen, 0) << "the program reads from streams that it has closed";
  });
}

// ---- descriptors 0 to 2

class guest_descriptors : public guest {
 protected:
  // Files of which a read past their first bytes needs a host descriptor.
  void make_files(int count) const {
    for (int i = 0; i < count; ++i)
      (void)folder_.write("many-" + std::to_string(i), std::string(50'000, 'm'));
  }
  // Opens and reads all of them, and looks whether descriptors are left to the program meanwhile.
  void read_files(mount& fs, int count) const;
};
INSTANTIATE_TEST_SUITE_P(in, guest_descriptors, ::testing::ValuesIn(guest_settings()),
                         ::testing::PrintToStringParamName());

// A file that became descriptor 2 would get what the program, or the library, writes to its
// standard error.
TEST_P(guest_descriptors, none_to_two_that_the_program_has_closed_stay_closed) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers open pipes of their own to see what may be read";
#endif
  in_child([this] {
    const std::string large = self_checking(1, 0, 0, 100'000);
    (void)folder_.write("small", "few bytes");
    (void)folder_.write("large", large);
    for (int i = 0; i < 3; ++i) (void)::close(i);
    std::atomic<bool> is_done{false};
    std::atomic<int> taken{0};
    std::thread program([&] {
      while (!is_done) {
        for (int i = 0; i < 3; ++i) {
          // Not write(): ThreadSanitizer takes a write to what others may open for a race, which it
          // is.
          if (syscall(SYS_write, i, "an error message", 16) >= 0 || errno != EBADF) ++taken;
        }
      }
    });
    for (int i = 0; i < 3; ++i) {
      mount fs(options());
      session calls(fs, group_kind::warp);
      for (int k = 0; k < 5; ++k) {
        const std::int32_t few = calls.open(path("small")), many = calls.open(path("large")),
                           made = calls.open(path("made"), O_RDWR | O_CREAT | O_TRUNC);
        calls.expect_read(few, "few bytes", 0, 100);
        for (std::int64_t at = 0; at < 100'000; at += 10'000)
          calls.expect_read(many, large, at, 10'000);
        EXPECT_EQ(calls.write(made, large, 0), 100'000);
        EXPECT_EQ(calls.sync(made), 0);
        for (const std::int32_t fd : {few, many, made}) EXPECT_EQ(calls.close(fd), 0);
      }
      (void)calls.open(path("large"), O_RDWR);
      fs.unmount();
    }
    is_done = true;
    program.join();
    EXPECT_EQ(taken, 0);
    expect_same_bytes(content("large"), large, "large");
    expect_same_bytes(content("made"), large, "made");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(fcntl(i, F_GETFD), -1) << i;
  });
}

TEST_P(guest_descriptors, that_were_open_before_are_the_same_after) {
  in_child([this] {
    const auto all_open = [] {
      std::vector<std::pair<std::string, std::string>> all;
      for (const auto& link : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const std::string to = std::filesystem::read_symlink(link.path(), gone);
        if (!gone && to.find("/fd") == std::string::npos)
          all.emplace_back(link.path().filename(), to);
      }
      return all;
    };
    const auto before = all_open();
    {
      mount fs(options());
      use(fs);
      session calls(fs, group_kind::warp);
      (void)calls.open(path("large"));
    }
    EXPECT_EQ(all_open(), before);
  });
}

TEST_P(guest_descriptors, of_the_mount_do_not_reach_programs_that_the_program_starts) {
  in_child([this] {
    mount fs(options());
    use(fs);
    session calls(fs, group_kind::warp);
    (void)folder_.write("read", std::string(100'000, 'r'));
    const std::int32_t read = calls.open(path("read")),
                       written = calls.open(path("written"), O_RDWR | O_CREAT);
    for (std::int64_t at = 0; at < 100'000; at += 4096) (void)calls.read(read, at, 4096);
    EXPECT_EQ(calls.write(written, "bytes", 0), 5);
    // One that was open before this test is not the mount's.
    const std::string lists = "for fd in /proc/self/fd/*; do readlink $fd; done | grep -q " +
                              (folder_ / "") + " && exit 1; exit 0";
    EXPECT_EQ(std::system(lists.c_str()), 0);
    EXPECT_EQ(calls.close(written), 0);
    EXPECT_EQ(calls.close(read), 0);
  });
}

// ---- RLIMIT_NOFILE

// The tests before have left some open. So the limit is set to what is open, and `count` more.
void leave_free(std::size_t count) {
  int highest = 2;
  for (int fd = 3; fd < 1024; ++fd) highest = fcntl(fd, F_GETFD) >= 0 ? fd : highest;
  const rlim_t all = static_cast<rlim_t>(highest) + count + 24;
  const rlimit few{all, all};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(fd);
  ASSERT_GE(taken.size(), count);
  for (std::size_t i = 0; i < count; ++i, taken.pop_back()) (void)::close(taken.back());
}

void expect_some_for_the_program(int files) {
  std::vector<int> own;
  for (int n = 0; n < 4; ++n) own.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const int fd : own) {
    EXPECT_GE(fd, 0) << "the mounts have taken them all with " << files << " files";
    (void)::close(fd);
  }
}

TEST_P(guest_descriptors, are_left_to_the_program_where_there_are_few) {
  in_child([this] {
    leave_free(40);
    mount fs(options());
    use(fs);
    session calls(fs, group_kind::warp);
    constexpr int files = 100;
    std::vector<std::int32_t> open;
    for (int i = 0; i < files; ++i) {
      const std::string name = "many-" + std::to_string(i);
      (void)folder_.write(name, self_checking(3, static_cast<unsigned>(i), 0, 50'000));
      open.push_back(calls.open(path(name)));
      ASSERT_GE(open.back(), 0) << i;
      expect_some_for_the_program(i);
    }
    for (int i = 0; i < files; ++i) {
      calls.expect_read(open[static_cast<std::size_t>(i)],
                        self_checking(3, static_cast<unsigned>(i), 0, 50'000), 40'000, 5000);
      expect_some_for_the_program(files);
    }
    for (const std::int32_t fd : open) EXPECT_EQ(calls.close(fd), 0);
  });
}

std::size_t free_now() {
  std::vector<int> own;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) own.push_back(fd);
  for (const int fd : own) (void)::close(fd);
  return own.size();
}

void guest_descriptors::read_files(mount& fs, int count) const {
  session calls(fs, group_kind::warp);
  for (int i = 0; i < count; ++i) {
    const std::int32_t fd = calls.open(path("many-" + std::to_string(i)));
    ASSERT_GE(fd, 0) << i;
    EXPECT_EQ(calls.read(fd, 40'000, 5000).bytes, std::string(5000, 'm'));
    expect_some_for_the_program(i);
  }
}

TEST_P(guest_descriptors, are_left_to_the_program_beside_two_mounts) {
  in_child([this] {
    constexpr int files = 100;
    make_files(files);
    leave_free(100);
    mount first(options()), second(options());
    read_files(first, files);
    read_files(second, files);
    first.unmount();
    second.unmount();
    // What they might have opened is free again.
    mount third(options());
    read_files(third, files);
    EXPECT_LE(free_now(), 90u) << "more than the eight that each mount may have";
  });
}

// As many mounts as a machine has GPUs.
TEST_P(guest_descriptors, are_shared_by_eight_mounts) {
  in_child([this] {
    constexpr int files = 60;
    make_files(files);
    leave_free(800);
    std::vector<std::unique_ptr<mount>> all;
    for (int m = 0; m < 8; ++m) all.push_back(std::make_unique<mount>(options()));
    std::size_t before = free_now();
    for (int m = 0; m < 8; ++m) {
      read_files(*all[static_cast<std::size_t>(m)], files);
      const std::size_t now = free_now();
      // The first ones keep all of them open. The last ones open them again and again.
      if (m < 3) {
        EXPECT_GE(before - now, 50u) << "mount " << m;
      }
      before = now;
    }
  });
}

// It never gives its share back, but what it has open is all that it keeps.
TEST_P(guest_descriptors, that_a_mount_leaves_behind_are_few) {
  in_child([this] {
    make_files(40);
    leave_free(400);
    std::vector<std::shared_ptr<hanging_backend::gate>> hanging;
    for (int round = 0; round < 12; ++round) {
      const auto io = std::make_shared<hanging_backend>(make_posix_backend(), "read", 1, true);
      hanging.push_back(io->calls());
      mount_options o = options();
      o.root.reset();
      o.backend = io;
      o.unmount_timeout = std::chrono::milliseconds(50);
      mount fs(o);
      session calls(fs, group_kind::warp),
          hurried(fs, group_kind::warp, std::chrono::milliseconds(50));
      const std::int32_t fd = calls.open(folder_ / "many-0");
      ASSERT_GE(fd, 0);
      (void)hurried.read(fd, 40'000, 5000);
    }
    mount fs(options());
    const std::size_t before = free_now();
    read_files(fs, 40);
    EXPECT_GE(before - free_now(), 40u) << "the mount can keep them open";
    for (const auto& io : hanging) io->release();
  });
}

}  // namespace
}  // namespace gpufs::testing

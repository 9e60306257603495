// What the POSIX backend refuses to open: everything but regular files of file systems that hold
// data. A refused open has no effect on what it was asked for.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/posix_backend.hpp"
#include "gpufs/backend.hpp"
#include "gpufs/base/kernel_file_systems.hpp"
#include "support/closed_streams.hpp"
#include "support/eventually.hpp"
#include "support/record_lock.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

// How the backend reaches files: without a root, below one, and where the proc file system is
// missing.
enum class world { plain, rooted, no_proc };
void PrintTo(world w, std::ostream* out) {
  *out << (w == world::plain ? "plain" : w == world::rooted ? "rooted" : "no_proc");
}

TEST(kernel_file_systems, are_told_by_their_numbers) {
  for (const std::uint32_t gadget_spu_ibmasm_oprofile :
       {0xaee71ee7u, 0x23c9b64eu, 0x67321273u, 0x6f70726fu})
    EXPECT_TRUE(is_kernel_file_system(gadget_spu_ibmasm_oprofile)) << gadget_spu_ibmasm_oprofile;
  EXPECT_TRUE(is_kernel_file_system(0x9fa0)) << "proc";
  for (const std::uint32_t ext4_tmpfs : {0xef53u, 0x01021994u})
    EXPECT_FALSE(is_kernel_file_system(ext4_tmpfs)) << ext4_tmpfs;
}

// Numbers of 64 bits count nanoseconds up to the year 2262.
TEST(file_times, that_are_past_all_numbers_are_the_last_number) {
  const temporary_folder folder;
  const std::string path = folder.write("file", "content");
  constexpr std::int64_t year_2400 = 13'569'465'600, year_1600 = -11'676'096'000;
  for (const std::int64_t seconds : {year_2400, year_1600}) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    struct stat s;
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    ASSERT_EQ(stat(path.c_str(), &s), 0);
    if (s.st_mtim.tv_sec != seconds) continue;  // this file system has no such times
    std::unique_ptr<backend_file> file;
    ASSERT_EQ(make_posix_backend(posix_backend_options{})->open(path, false, file), 0);
    file_identity identity;
    ASSERT_EQ(file->identify(identity), 0);
    EXPECT_EQ(identity.modified_ns < 0, seconds < 0) << identity.modified_ns;
  }
}

class special_files : public ::testing::TestWithParam<world> {
 protected:
  special_files() {
    posix_backend_options options;
    if (GetParam() == world::rooted) options.root = "/";
    io_ = make_posix_backend(options, GetParam() == world::no_proc ? folder_ / "no-proc" : "/proc");
  }
  // As the backend of this world is to be asked for it.
  static std::string name(const std::string& path) {
    return GetParam() == world::rooted ? path.substr(1) : path;
  }
  int open(const std::string& path, bool no_follow = false) const {
    std::unique_ptr<backend_file> file;
    const int status = io_->open(name(path), no_follow, file);
    EXPECT_EQ(file == nullptr, status != 0) << path;
    return status;
  }
  int open_to_change(const std::string& path, const open_how& how = {}) const {
    std::unique_ptr<backend_file> file;
    const int status = io_->open_to_change(name(path), how, file);
    EXPECT_EQ(file == nullptr, status != 0) << path;
    return status;
  }
  void expect_refused(const std::string& path, int expected) const {
    EXPECT_EQ(open(path), expected) << path;
    for (const bool read : {false, true}) {
      for (const bool create : {false, true}) {
        EXPECT_EQ(open_to_change(path, {.read = read, .create = create, .mode = 0600}), expected)
            << path;
      }
    }
  }
  std::string content(const std::string& path) const {  // "?" where it cannot be read
    std::unique_ptr<backend_file> file;
    std::string to(100, '\0');
    if (io_->open(name(path), false, file) != 0) return "?";
    const std::int64_t bytes = file->read(to.data(), to.size(), 0);
    if (bytes < 0) return "? " + std::to_string(bytes);
    to.resize(static_cast<std::size_t>(bytes));
    return to;
  }

  const temporary_folder folder_;
  std::shared_ptr<backend> io_;
};
INSTANTIATE_TEST_SUITE_P(, special_files,
                         ::testing::Values(world::plain, world::rooted, world::no_proc),
                         ::testing::PrintToStringParamName());

// Says which files were really opened. An O_PATH descriptor is no open.
class open_watch {
 public:
  explicit open_watch(const std::string& path) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(fd_, path.c_str(), IN_OPEN), 0) << path;
  }
  ~open_watch() { (void)close(fd_); }
  open_watch(const open_watch&) = delete;
  open_watch& operator=(const open_watch&) = delete;
  bool saw_one() const {
    char events[4096];
    return read(fd_, events, sizeof events) > 0;
  }

 private:
  const int fd_;
};

std::string make_fifo(const temporary_folder& folder) {
  const std::string path = folder / "fifo";
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
  return path;
}

TEST_P(special_files, each_kind_has_its_errno) {
  expect_refused(make_fifo(folder_), -EINVAL);
  expect_refused("/dev/null", -EINVAL);
  expect_refused("/dev/zero", -EINVAL);
  const std::string folder = folder_ / "folder";
  std::filesystem::create_directory(folder);
  expect_refused(folder, -EISDIR);

  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder_ / "socket";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << strerror(errno);
  expect_refused(path, -EINVAL);
  EXPECT_EQ(::close(listener), 0);

  folder_.write("file", "content");
  std::filesystem::create_symlink("file", folder_ / "link");
  EXPECT_EQ(open(folder_ / "link", true), -ELOOP);
  EXPECT_EQ(open_to_change(folder_ / "link", {.no_follow = true}), -ELOOP);
  EXPECT_EQ(open(folder_ / "link"), 0);
}

TEST_P(special_files, a_refused_open_does_not_touch_the_file) {
  // Files of the test's own: others open the machine's devices all the time. Only root may make a
  // device, and not everywhere.
  std::vector<std::string> files{make_fifo(folder_)};
  if (mknod((folder_ / "device").c_str(), S_IFCHR | 0600, makedev(1, 5)) == 0)
    files.push_back(folder_ / "device");
  for (const std::string& path : files) {
    const open_watch watch(path);
    EXPECT_EQ(open(path), -EINVAL);
    EXPECT_EQ(open_to_change(path), -EINVAL);
    EXPECT_EQ(open_to_change(path, {.create = true}), -EINVAL);
    EXPECT_EQ(open_to_change(path, {.create = true, .exclusive = true}), -EEXIST);
    EXPECT_FALSE(watch.saw_one()) << path;
  }
  const open_watch sees_something(folder_.write("file", "content"));
  EXPECT_EQ(open(folder_ / "file"), 0);
  EXPECT_TRUE(sees_something.saw_one());
}

TEST_P(special_files, files_of_the_kernel_are_refused) {
  // The first is the memory of this process, regular and of size 0: the host's code could be
  // changed through it.
  for (const std::string path :
       {"/proc/self/mem", "/proc/self/maps", "/proc/self/comm", "/proc/sys/kernel/core_pattern",
        "/sys/kernel/uevent_seqnum", "/sys/fs/cgroup/cgroup.procs",
        "/sys/kernel/debug/sched/features", "/sys/kernel/tracing/trace", "/sys/kernel/security/lsm",
        "/sys/fs/selinux/enforce"}) {
    if (access(path.c_str(), F_OK) != 0) continue;
    expect_refused(path, -EINVAL);
    EXPECT_EQ(open_to_change(path, {.write = false, .create = true}), -EINVAL) << path;
  }
  std::filesystem::create_symlink("/proc/self/mem", folder_ / "harmless");
  EXPECT_EQ(open(folder_ / "harmless"), GetParam() == world::rooted ? -EXDEV : -EINVAL);
}

TEST_P(special_files, nothing_is_made_removed_or_renamed_among_files_of_the_kernel) {
  EXPECT_EQ(open_to_change("/proc/gpufs-test", {.create = true, .exclusive = true}), -EINVAL);
  EXPECT_EQ(open_to_change("/sys/gpufs-test", {.create = true}), -EINVAL);
  EXPECT_EQ(io_->unlink(name("/proc/self/mem")), -EINVAL);
  const std::string file = folder_.write("file", "content");
  EXPECT_EQ(io_->rename(name("/proc/self/mem"), name(folder_ / "here")), -EINVAL);
  EXPECT_EQ(io_->rename(name(file), name("/proc/self/mem")), -EINVAL);
  EXPECT_EQ(content(file), "content");
}

TEST_P(special_files, files_are_made_as_open_makes_them) {
  EXPECT_EQ(open_to_change(folder_ / "new", {.create = true, .mode = 0640}), 0);
  EXPECT_EQ(std::filesystem::status(folder_ / "new").permissions() & std::filesystem::perms(0700),
            std::filesystem::perms(0600));
  folder_.write("new", "content");
  EXPECT_EQ(open_to_change(folder_ / "new", {.create = true}), 0);
  EXPECT_EQ(open_to_change(folder_ / "new", {.create = true, .exclusive = true}), -EEXIST);
  EXPECT_EQ(content(folder_ / "new"), "content") << "an open that creates leaves what is there";
  EXPECT_EQ(open_to_change(folder_ / "none"), -ENOENT);
  EXPECT_EQ(open_to_change(folder_ / "none/file", {.create = true}), -ENOENT);
  EXPECT_EQ(open_to_change(folder_ / "new/file", {.create = true}), -ENOTDIR);
  EXPECT_EQ(open_to_change(folder_ / "folder/", {.create = true}), -EISDIR);
  EXPECT_EQ(open_to_change(GetParam() == world::rooted ? "/" : "", {.create = true}), -ENOENT);
}

// As the kernel's own open: the file is made where the link leads.
TEST_P(special_files, files_are_made_through_links) {
  std::filesystem::create_directory(folder_ / "inner");
  std::filesystem::create_symlink("inner/second", folder_ / "first");
  std::filesystem::create_symlink("../made", folder_ / "inner/second");
  EXPECT_EQ(open_to_change(folder_ / "first", {.create = true, .exclusive = true}), -EEXIST);
  EXPECT_EQ(open_to_change(folder_ / "first", {.no_follow = true, .create = true}), -ELOOP);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "made"));
  EXPECT_EQ(open_to_change(folder_ / "first", {.create = true, .mode = 0600}), 0);
  EXPECT_TRUE(std::filesystem::is_regular_file(folder_ / "made"));
  std::filesystem::create_symlink(folder_ / "elsewhere", folder_ / "absolute");
  EXPECT_EQ(open_to_change(folder_ / "absolute", {.create = true}),
            GetParam() == world::rooted ? -EXDEV : 0);
  EXPECT_EQ(std::filesystem::exists(folder_ / "elsewhere"), GetParam() != world::rooted);
  std::filesystem::create_symlink("round", folder_ / "round");
  EXPECT_EQ(open_to_change(folder_ / "round", {.create = true}), -ELOOP);
}

// ---- a good guest

std::size_t open_descriptors_of(const std::string& path) {
  std::size_t count = 0;
  for (const auto& link : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(link.path(), gone) == path ? 1u : 0u;
  }
  return count;
}

TEST_P(special_files, the_programs_locks_outlive_the_close_of_a_locked_file) {
  const std::string path = folder_.write("database", "content");
  for (const short type : {static_cast<short>(F_RDLCK), static_cast<short>(F_WRLCK)}) {
    const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct flock lock{};
    lock.l_type = type;
    lock.l_start = 2;
    lock.l_len = 1;
    ASSERT_EQ(fcntl(mine, F_SETLK, &lock), 0);
    ASSERT_TRUE(is_locked(mine));
    const std::size_t before = open_descriptors_of(path);
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(content(path), "content");
      ASSERT_TRUE(is_locked(mine)) << "after a read, lock of type " << type;
      ASSERT_EQ(open_to_change(path), 0);
      ASSERT_EQ(open_to_change(path, {.create = true}), 0);
      io_->close_handed();
      ASSERT_TRUE(is_locked(mine)) << "after an open for writing, lock of type " << type;
    }
    // What waits for the end of the lock is used again: one descriptor that reads, and one that
    // writes.
    EXPECT_LE(open_descriptors_of(path), before + 2);
    lock.l_type = F_UNLCK;
    ASSERT_EQ(fcntl(mine, F_SETLK, &lock), 0);
    EXPECT_TRUE(eventually([&] {
      io_->close_handed();
      return open_descriptors_of(path) == before;
    })) << "descriptors stay open after the lock has gone";
    EXPECT_EQ(::close(mine), 0);
  }
}

// Openers have descriptor tables of their own, whose closes drop no locks. Workers open the file
// once more, in the process's.
TEST_P(special_files, openers_refuse_the_same_and_keep_the_locks) {
  const std::string path = folder_.write("database", "content"), fifo = make_fifo(folder_);
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_TRUE(set_lock(mine, F_WRLCK));
  const std::size_t before = open_descriptors_of(path);
  const open_watch watch(fifo);
  bool is_own = false;
  std::vector<std::unique_ptr<backend_file>> files(50);
  std::promise<void> opened, used;
  std::thread opener([&] {
    const std::unique_ptr<descriptor_table_guard> stay = io_->enter_opener();
    is_own = stay != nullptr;
    EXPECT_EQ(open(fifo), -EINVAL);
    EXPECT_EQ(open(folder_ / ""), -EISDIR);
    EXPECT_EQ(open("/proc/self/mem"), -EINVAL);
    for (auto& file : files) {
      EXPECT_EQ(content(path), "content");
      EXPECT_EQ(io_->open(name(path), false, file), 0);
      file_identity identity;
      EXPECT_EQ(file->identify(identity), 0);
    }
    opened.set_value();
    used.get_future().wait();
    io_->close_handed();
  });
  opened.get_future().wait();
  for (auto& file : files) {
    char bytes[7];
    EXPECT_EQ(file->read(bytes, sizeof bytes, 0), 7);
    file = nullptr;
    io_->close_handed();
  }
  used.set_value();
  opener.join();
  EXPECT_TRUE(is_locked(mine));
  EXPECT_FALSE(watch.saw_one());
  if (is_own) {
    EXPECT_LE(open_descriptors_of(path), before + 1) << "one is kept, and used each time";
  }
  ASSERT_TRUE(set_lock(mine, F_UNLCK));
  EXPECT_TRUE(eventually([&] {
    io_->close_handed();
    return open_descriptors_of(path) == before;
  }));
  EXPECT_EQ(::close(mine), 0);
}

TEST_P(special_files, the_programs_locks_of_a_folder_outlive_its_sync) {
  const int mine = ::open((folder_ / "").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!set_lock(mine, F_RDLCK)) GTEST_SKIP() << "this file system has no locks of folders";
  const std::string itself = std::filesystem::path(folder_ / "").parent_path();
  const std::size_t before = open_descriptors_of(itself);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(io_->sync_folder(name(itself)), 0);
    ASSERT_TRUE(is_locked(mine));
  }
  EXPECT_LE(open_descriptors_of(itself), before + 1) << "one is kept, and used each time";
  ASSERT_TRUE(set_lock(mine, F_UNLCK));
  EXPECT_TRUE(eventually([&] {
    io_->close_handed();
    return open_descriptors_of(itself) == before;
  }));
  EXPECT_EQ(::close(mine), 0);
}

TEST_P(special_files, a_kept_descriptor_gives_nobody_what_the_mode_forbids) {
  if (geteuid() == 0) GTEST_SKIP() << "root may open everything";
  const std::string path = folder_.write("database", "content");
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock{};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(mine, F_SETLK, &lock), 0);
  ASSERT_EQ(content(path), "content");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_EQ(open(path), -EACCES);
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(content(path), "content");
  EXPECT_EQ(::close(mine), 0);
}

TEST_P(special_files, files_are_never_descriptors_0_to_2) {
  const std::string path = folder_.write("file", "content");
  bool was_used = false;
  int status = 0, changed = 0, made = 0;
  {
    std::unique_ptr<backend_file> read, written, created;
    const closed_streams closed;
    status = io_->open(name(path), false, read);
    changed = io_->open_to_change(name(path), {}, written);
    made = io_->open_to_change(name(folder_ / "new"), {.create = true, .mode = 0600}, created);
    was_used = closed_streams::any_is_open();
  }
  EXPECT_EQ(status, 0);
  EXPECT_EQ(changed, 0);
  EXPECT_EQ(made, 0);
  EXPECT_FALSE(was_used);
}

}  // namespace
}  // namespace gpufs::testing

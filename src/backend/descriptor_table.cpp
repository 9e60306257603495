#include "backend/descriptor_table.hpp"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <future>
#include <new>
#include <thread>
#include <utility>

#include "backend/closing_thread.hpp"
#include "backend/table_calls.hpp"
#include "base/uninterrupted.hpp"
#include "gpufs/base/start_thread.hpp"

namespace gpufs {
namespace {

constexpr long faccessat2_call = 439;
constexpr std::int64_t looks_at_locks_ms = 100;
// More than these are handed over only to a thread that hangs.
constexpr std::size_t handed_at_first = 1024;

// Linux copies a table by whole words of 64 numbers, and then closes the copies that were not
// wanted. That is a close like any other: the file system reports to it the write errors that it
// would have reported to the next close, and they are lost.
constexpr int copied_at_least = 64;

bool identify(int descriptor, struct statx& s) {
  return statx(descriptor, "", AT_EMPTY_PATH, STATX_INO, &s) == 0;
}
bool is_same(const struct statx& a, const struct statx& b) {
  return a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor &&
         a.stx_ino == b.stx_ino;
}

// Whether the calling thread can reopen a descriptor of another thread's table.
bool leads_to(const std::string& proc, long thread, int descriptor,
              const struct statx& identity) noexcept {
  try {
    const int fd = descriptor_table(proc, thread).reopen(descriptor);
    struct statx found{};
    const bool same = fd >= 0 && identify(fd, found) && is_same(found, identity);
    if (fd >= 0) descriptor_table::of_this_thread().close(fd);
    return same;
  } catch (const std::exception&) {
    return false;
  }
}

// Whether any process holds a POSIX lock on a descriptor's file, or a lock that may hide one. A
// query for an open file description also sees the locks of this process, and returns the first
// lock.
bool is_locked(int descriptor) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::int64_t coarse_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return std::int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000;
}

}  // namespace

thread_local const std::shared_ptr<descriptor_table>* descriptor_table::current_ = nullptr;

descriptor_table& descriptor_table::of_process() {
  // Never destroyed: threads that were detached because they hang may still use it at exit.
  static auto* const table = [] {
    static auto* const made = new descriptor_table;
    // A fork copies what other threads are doing, but not the threads.
    if (pthread_atfork(nullptr, nullptr, [] { made->streams_.reset_in_child(); }) != 0)
      throw std::bad_alloc();
    return made;
  }();
  return *table;
}

descriptor_table::descriptor_table() : links_("/proc/self/fd/") {
  handed_.reserve(handed_at_first);
}
descriptor_table::descriptor_table(const std::string& proc, long thread)
    : thread_(thread), links_(proc + "/self/task/" + std::to_string(thread) + "/fd/") {
  handed_.reserve(handed_at_first);
}

bool descriptor_table::can_be_own(const std::string& proc) noexcept {
  try {
    struct probe {
      long thread = 0;
      int descriptor = -1;
      struct statx identity{};
    };
    std::promise<probe> opened;
    std::promise<void> seen;
    std::future<probe> opened_there = opened.get_future();
    std::thread other = start_thread([&opened, may_end = seen.get_future()] {
      probe p;
      p.thread = syscall(SYS_gettid);
      if (take_own_table())
        p.descriptor = static_cast<int>(syscall(SYS_memfd_create, "gpufs", 1u /* MFD_CLOEXEC */));
      if (p.descriptor >= 0 && !identify(p.descriptor, p.identity)) p.descriptor = -1;
      opened.set_value(p);
      may_end.wait();
      if (p.descriptor >= 0) (void)syscall(SYS_close, p.descriptor);
    });
    const probe p = opened_there.get();
    const bool reached = p.descriptor >= 0 && leads_to(proc, p.thread, p.descriptor, p.identity);
    seen.set_value();
    other.join();
    return reached;
  } catch (const std::exception&) {
    return false;  // no memory or no thread: no own table either
  }
}

// The guard of a thread that has its own table.
class own_table_stay final : public descriptor_table_guard {
 public:
  explicit own_table_stay(std::shared_ptr<descriptor_table> table) : table_(std::move(table)) {}
  ~own_table_stay() override {
    if (descriptor_table::current_ != &table_) return;  // make_own() failed
    table_->end();
    descriptor_table::current_ = nullptr;
  }
  own_table_stay(const own_table_stay&) = delete;
  own_table_stay& operator=(const own_table_stay&) = delete;
  void begin() { descriptor_table::current_ = &table_; }

 private:
  const std::shared_ptr<descriptor_table> table_;
};

std::unique_ptr<descriptor_table_guard> descriptor_table::make_own(
    const std::string& proc) noexcept {
  try {
    auto table = std::make_shared<descriptor_table>(proc, syscall(SYS_gettid));
    auto stay = std::make_unique<own_table_stay>(std::move(table));
    if (!take_own_table()) return nullptr;
    stay->begin();
    descriptor_table& own = of_this_thread();
    own.own_links_ = own.open(own.links_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    return stay;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// ---- System calls
//
// ThreadSanitizer knows only one table. It takes equal numbers in two tables for the same
// descriptor. So calls in an opener's table bypass the functions that it intercepts.

int descriptor_table::open(const char* path, int flags, unsigned mode, int folder) {
  const auto fd = is_own() ? static_cast<int>(syscall(SYS_openat, folder, path, flags, mode))
                           : ::openat(folder, path, flags, mode);
  if (fd < 0) return -errno;
  return (flags & O_PATH) != 0 ? fd : above_streams(fd);
}

int descriptor_table::above_streams(int descriptor) {
  if (descriptor > 2) return descriptor;
  const auto higher = static_cast<int>(syscall(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, 3));
  const int result = higher < 0 ? -errno : higher;
  close_or_keep(descriptor);
  return result;
}

std::int64_t descriptor_table::read(int descriptor, char* to, std::uint64_t bytes,
                                    std::uint64_t offset) const {
  const std::int64_t n =
      is_own() ? syscall(SYS_pread64, descriptor, to, bytes, static_cast<off_t>(offset))
               : pread(descriptor, to, bytes, static_cast<off_t>(offset));
  return n < 0 ? -errno : n;
}

int descriptor_table::close_now(int descriptor) const noexcept {
  const long status = is_own() ? syscall(SYS_close, descriptor) : ::close(descriptor);
  return status == 0 ? 0 : -errno;
}

void descriptor_table::close(int descriptor, std::shared_ptr<close_listener> told) noexcept {
  if (is_of_this_thread()) {
    close_or_keep(descriptor, std::move(told));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  try {
    handed_.push_back({descriptor, std::move(told)});
  } catch (const std::bad_alloc&) {
    return;  // stays open as long as its table
  }
  any_handed_.store(true, std::memory_order_relaxed);
}

int descriptor_table::move_from_copied(int descriptor, int& reported) const {
  reported = 0;
  if (is_own() || descriptor < 0 || descriptor >= copied_at_least || is_locked(descriptor))
    return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, copied_at_least);
  if (moved < 0) return descriptor;
  reported = close_now(descriptor);
  return moved;
}

// Each close of the file, by any program, may take its error away: FUSE tells it once for the file.
// Linux tells it once for each descriptor, too, but only to calls that wait for pages. This one
// waits for none, because no file has any so far out.
int descriptor_table::report_close(int descriptor, closing_thread& other) const {
  int closed = 0, not_asked = 0;
  if (is_locked(descriptor)) {
    not_asked = other.close_copy(descriptor, closed);
  } else {
    const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) not_asked = -errno;
    else closed = close_now(copy);
  }
  if (not_asked != 0 && not_asked != -EMFILE) not_asked = -EAGAIN;
  constexpr off_t past_all_files = off_t{1} << 62;
  const int lost =
      sync_file_range(descriptor, past_all_files, 1, SYNC_FILE_RANGE_WAIT_BEFORE) == 0 ? 0 : errno;
  // Any error is the file's, but those of a call that cannot be made (EPERM: in a sandbox).
  const bool is_told =
      lost != EBADF && lost != EINVAL && lost != ESPIPE && lost != ENOSYS && lost != EPERM;
  const int status = closed != 0 ? closed : is_told ? -lost : 0;
  // A server may choose any number for a loss.
  return status == 0 ? not_asked : backend_file::could_not_ask(status) ? -EIO : status;
}

void descriptor_table::name_listener(int descriptor, std::shared_ptr<close_listener> told) {
  const auto number = static_cast<std::size_t>(descriptor);
  if (listeners_.size() <= number) listeners_.resize(2 * number + 1);
  listeners_[number] = std::move(told);
}

void descriptor_table::close_handed() noexcept {
  while (any_handed_.load(std::memory_order_relaxed)) {
    std::array<handed_descriptor, 16> taken;
    std::size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      count = std::min(taken.size(), handed_.size());
      std::move(handed_.end() - static_cast<std::ptrdiff_t>(count), handed_.end(), taken.begin());
      handed_.resize(handed_.size() - count);
      if (handed_.empty()) any_handed_.store(false, std::memory_order_relaxed);
    }
    for (std::size_t i = 0; i < count; ++i)
      close_or_keep(taken[i].number, std::move(taken[i].told));
  }
  close_kept();
}

void descriptor_table::close_or_keep(int descriptor,
                                     std::shared_ptr<close_listener> told) noexcept {
  struct stat s;
  if (is_own() || !is_locked(descriptor) || fstat(descriptor, &s) != 0) {
    const int status = close_now(descriptor);
    if (const auto number = static_cast<std::size_t>(descriptor); number < listeners_.size()) {
      std::shared_ptr<close_listener> named = std::move(listeners_[number]);
      if (told == nullptr) told = std::move(named);
    }
    // EBADF: the program has closed it. EINTR: a signal came; FUSE has not asked the server then.
    if (status != 0 && status != -EBADF && status != -EINTR && told != nullptr)
      told->close_failed(status);
    return;
  }
  const int access = fcntl(descriptor, F_GETFL) & O_ACCMODE;
  kept_count_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  try {
    kept_.push_back({{s.st_dev, s.st_ino, access}, descriptor, std::move(told)});
  } catch (const std::bad_alloc&) {
    return;  // stays open as long as its table
  }
  any_kept_.store(true, std::memory_order_relaxed);
}

void descriptor_table::close_kept() noexcept {
  if (!any_kept_.load(std::memory_order_relaxed)) return;
  std::int64_t due = look_at_ms_.load(std::memory_order_relaxed);
  const std::int64_t now = coarse_ms();
  // Relaxed: the exchange only selects the thread that checks; the mutex orders the list.
  if (now < due ||
      !look_at_ms_.compare_exchange_strong(due, now + looks_at_locks_ms, std::memory_order_relaxed))
    return;
  std::vector<kept_descriptor> seen;
  {
    const std::lock_guard lock(mutex_);
    seen.swap(kept_);
    any_kept_.store(false, std::memory_order_relaxed);
  }
  for (kept_descriptor& k : seen) {
    close_or_keep(k.number, std::move(k.told));
    // After the close, because the descriptor counts until then.
    kept_count_.fetch_sub(1, std::memory_order_relaxed);
  }
}

int descriptor_table::take_kept(const kept_name& name, int path) {
  if (!any_kept_.load(std::memory_order_relaxed)) return -ENOENT;
  kept_descriptor taken;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, name, &kept_descriptor::name);
    if (found == kept_.end()) return -ENOENT;
    std::swap(*found, kept_.back());
    taken = std::move(kept_.back());
    kept_.pop_back();
  }
  kept_count_.fetch_sub(1, std::memory_order_relaxed);
  const int wanted = name.access == O_RDONLY ? R_OK : name.access == O_WRONLY ? W_OK : R_OK | W_OK;
  if (path < 0 || syscall(faccessat2_call, path, "", wanted, AT_EACCESS | AT_EMPTY_PATH) == 0)
    return taken.number;
  const int status = -errno;
  close_or_keep(taken.number, std::move(taken.told));
  return status;
}

int descriptor_table::reopen(int descriptor) {
  // Holds the table's thread back from ending. After its end the links could be those of a new
  // thread with the same number.
  const std::shared_lock lock(life_);
  if (ended_) return -ESTALE;
  // Any file will do: it keeps the opened file and its copy out of the numbers of the streams.
  const path_descriptor root([] { return of_this_thread().open("/", O_PATH | O_CLOEXEC); });
  if (root.number() < 0) return root.number();
  const std::string link = links_ + std::to_string(descriptor);
  const int fd = uninterrupted([&] {
    return of_this_thread().open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  });
  // The link exists, so the file itself cannot be opened again: copy the descriptor.
  char to = 0;
  if (fd < 0 && fd != -EMFILE && fd != -ENFILE && thread_ != 0 &&
      readlink(link.c_str(), &to, 1) > 0) {
    if (const int copied = copy(descriptor); copied >= 0) return copied;
  }
  return fd;
}

// Copies the descriptor itself, instead of opening its file again. This needs no permission on the
// file. The copy closes at exec. The caller has a path_descriptor.
int descriptor_table::copy(int descriptor) const {
  const int copied = copy_of(thread_, descriptor);
  return copied < 0 ? copied : of_this_thread().above_streams(copied);
}

void descriptor_table::end() {
  std::vector<handed_descriptor> handed;
  {
    const std::lock_guard life(life_);
    const std::lock_guard lock(mutex_);
    ended_ = true;
    handed.swap(handed_);
  }
  for (handed_descriptor& h : handed) close_or_keep(h.number, std::move(h.told));
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (listeners_[i] != nullptr) close_or_keep(static_cast<int>(i));
  }
  // Close everything in the table now. The thread's end would do it too, but perhaps only after
  // other threads have seen the thread end. A close may wait for the file system, so mutex_ is not
  // held: close() of other threads takes it.
  (void)syscall(close_range_call, 3u, ~0u, 0u);
}

}  // namespace gpufs

#include "support/failing_calls.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace gpufs::testing {
namespace {

constexpr int no_descriptor[] = {EMFILE, ENFILE, ENOMEM};
constexpr int no_path[] = {EACCES, EMFILE, ENOMEM, EIO, ENOENT};
constexpr int no_io[] = {EIO};
constexpr int no_read[] = {EIO, EINTR, done_in_part};
constexpr int no_write[] = {EIO, ENOSPC, EDQUOT, EINTR, done_in_part};
constexpr int no_truncate[] = {EIO, EINTR, ENOSPC};
constexpr int no_close[] = {EIO, EDQUOT, EINTR};
constexpr int no_memory[] = {ENOMEM};
constexpr int no_thread[] = {EAGAIN};
constexpr int no_change[] = {EACCES, EIO, EROFS, ENOENT};
constexpr int no_call[] = {ENOSYS, EPERM};
constexpr int no_lock[] = {EINVAL, ENOLCK};
constexpr int no_copy[] = {EFAULT, EPERM, ENOMEM};
constexpr int no_wait[] = {EINTR, EAGAIN};
constexpr int no_limit[] = {EPERM};

// The system calls in the order of `number`.
constexpr failing_kind kinds[] = {
    {operator_new, no_memory},
    {thread_start, no_thread},
    {"calloc", no_memory},
    {"open", no_path},
    {"openat", no_path},
    {"openat2", no_path},
    {"close", no_close},
    {"close_range", no_call},
    {"fcntl", no_lock},
    {"dup", no_descriptor},
    {"statx", no_io},
    {"fstat", no_io},
    {"fstatfs", no_io},
    {"pread", no_read},
    {"pwrite", no_write},
    {"ftruncate", no_truncate},
    {"fdatasync", no_io},
    {"fsync", no_io},
    {"unlinkat", no_change},
    {"renameat", no_change},
    {"mmap", no_memory},
    {"munmap", no_memory},
    {"madvise", no_memory},
    {"mincore", no_memory},
    {"cachestat", no_call},
    {"process_vm_readv", no_copy},
    {"memfd_create", no_descriptor},
    {"sysinfo", no_memory},
    {"getrlimit", no_limit},
    {"poll", no_memory},
    {"sigaction", no_lock},
    {"prctl", no_call},
    {"futex", no_wait},
};

constexpr std::size_t number_of(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kinds); ++i) {
    if (kinds[i].name == name) return i;
  }
  return std::size(kinds);
}

// What must fail. Written while no code of the library runs.
std::atomic<bool> is_on{false};
std::atomic<std::size_t> chosen{0};
std::atomic<std::uint64_t> first{0}, last{0};
std::atomic<int> chosen_error{0};
std::array<std::atomic<std::uint64_t>, std::size(kinds)> calls{};
std::optional<failing_allocation> allocations;

struct range {
  void* data;
  std::size_t bytes;
};
std::mutex left_mutex;
// Mappings whose munmap failed on purpose. A fixed number, because memory may fail, too.
std::array<range, 4096> left_mapped;
std::size_t left_count = 0;

// These tests are not about power loss, so syncs do not wait for a disk.
bool is_on_for_this_thread() { return is_on.load(std::memory_order_relaxed) && !own_thread(); }

// Returns the error of a call of a kind; 0: make the call.
int failure(std::size_t kind) {
  if (!is_on_for_this_thread()) return 0;
  const std::uint64_t n = calls[kind].fetch_add(1, std::memory_order_relaxed) + 1;
  if (kind != chosen.load(std::memory_order_relaxed)) return 0;
  return n >= first.load(std::memory_order_relaxed) && n <= last.load(std::memory_order_relaxed)
             ? chosen_error.load()
             : 0;
}

// Returns -1 with errno if the call must fail, otherwise the result of `call`.
template <class Call>
auto made(std::size_t kind, const Call& call) -> decltype(call()) {
  if (const int e = failure(kind); e != 0) {
    errno = e;
    return -1;
  }
  return call();
}

std::uint64_t calls_of_chosen() { return failing_calls::count_of(kinds[chosen].name); }

std::function<void(const char*)> threads_hook() {
  return [](const char* point) {
    if (std::strcmp(point, "thread.start") != 0) return;
    if (const int e = failure(number_of(thread_start)); e != 0)
      throw std::system_error(e, std::generic_category(), "pthread_create");
  };
}

}  // namespace

std::span<const failing_kind> failing_kinds() { return kinds; }

failing_calls::failing_calls(std::string_view kind, std::uint64_t nth, bool for_ever, int error)
    : threads_(threads_hook()) {
  chosen = number_of(kind);
  if (chosen == std::size(kinds)) {
    std::fprintf(stderr, "failing_calls: no such kind: %.*s\n", static_cast<int>(kind.size()),
                 kind.data());
    std::abort();
  }
  first = nth;
  last = nth != 0 && for_ever ? ~std::uint64_t{0} : nth;
  chosen_error = error;
  for (auto& n : calls) n = 0;
  allocations.emplace(failing_allocation::of::all_threads, kind == operator_new ? nth : 0,
                      for_ever);
  is_on = true;
}

failing_calls::~failing_calls() {
  is_on = false;
  allocations.reset();
  const std::lock_guard lock(left_mutex);
  for (std::size_t i = 0; i < left_count; ++i)
    (void)munmap(left_mapped[i].data, left_mapped[i].bytes);
  left_count = 0;
}

void failing_calls::stop() {
  last = std::min(last.load(), calls_of_chosen());
  allocations->stop();
}
void failing_calls::stop_after(std::uint64_t calls) { last = std::min(last.load(), calls); }

bool failing_calls::has_struck() const { return strikes_on(kinds[chosen].name) != 0; }
std::uint64_t failing_calls::strikes_on(std::string_view kind) {
  if (!is_on || number_of(kind) != chosen || first == 0) return 0;
  const std::uint64_t count = std::min(count_of(kind), last.load());
  return count < first ? 0 : count - first + 1;
}

std::uint64_t failing_calls::count_of(std::string_view kind) {
  if (kind == operator_new) return allocations.has_value() ? allocations->count() : 0;
  return calls[number_of(kind)];
}

own_calls::own_calls() : before_(own_thread()) { own_thread() = true; }
own_calls::~own_calls() { own_thread() = before_; }

}  // namespace gpufs::testing

// ---- Replacements by --wrap; __real_ is the original function.

using gpufs::testing::done_in_part;
using gpufs::testing::failure;
using gpufs::testing::is_on_for_this_thread;
using gpufs::testing::made;
using gpufs::testing::number_of;

namespace {

template <class Pointer>
ssize_t transferred(std::size_t kind, ssize_t (*call)(int, Pointer, std::size_t, off_t), int fd,
                    Pointer data, std::size_t bytes, off_t offset) {
  const int e = failure(kind);
  if (e == done_in_part) return call(fd, data, bytes > 1 ? bytes / 2 : bytes, offset);
  if (e == 0) return call(fd, data, bytes, offset);
  errno = e;
  return -1;
}

// Returns the name of what the library requests by syscall(2); "" if it cannot fail.
std::string_view name_of_call(long number, long second) {
  switch (number) {
    case SYS_openat: return "openat";
    case SYS_close: return "close";
    case SYS_pread64: return "pread";
    case SYS_fcntl: return "dup";
    case SYS_memfd_create: return "memfd_create";
    case 436: return "close_range";
    case 437: return "openat2";
    case 451: return "cachestat";
    case SYS_futex: return (second & FUTEX_CMD_MASK) == FUTEX_WAIT ? "futex" : "";
    default: return "";
  }
}

}  // namespace

extern "C" {

void* __real_calloc(std::size_t count, std::size_t bytes);
void* __wrap_calloc(std::size_t count, std::size_t bytes) {
  return failure(number_of("calloc")) != 0 ? nullptr : __real_calloc(count, bytes);
}

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return made(number_of("open"), [&] { return __real_open(path, flags, mode); });
}

int __real_openat(int folder, const char* path, int flags, ...);
int __wrap_openat(int folder, const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return made(number_of("openat"), [&] { return __real_openat(folder, path, flags, mode); });
}

// Linux has closed the descriptor, even if it returns an error.
int __real_close(int fd);
int __wrap_close(int fd) {
  const int e = failure(number_of("close"));
  const int result = __real_close(fd);
  if (e == 0) return result;
  errno = e;
  return -1;
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  std::va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  const bool copies = command == F_DUPFD_CLOEXEC || command == F_DUPFD;
  return made(number_of(copies ? "dup" : "fcntl"),
              [&] { return __real_fcntl(fd, command, argument); });
}

int __real_statx(int folder, const char* path, int flags, unsigned mask, struct statx* to);
int __wrap_statx(int folder, const char* path, int flags, unsigned mask, struct statx* to) {
  return made(number_of("statx"), [&] { return __real_statx(folder, path, flags, mask, to); });
}

int __real_fstat(int fd, struct stat* to);
int __wrap_fstat(int fd, struct stat* to) {
  return made(number_of("fstat"), [&] { return __real_fstat(fd, to); });
}

int __real_fstatfs(int fd, struct statfs* to);
int __wrap_fstatfs(int fd, struct statfs* to) {
  return made(number_of("fstatfs"), [&] { return __real_fstatfs(fd, to); });
}

ssize_t __real_pread(int fd, void* to, std::size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void* to, std::size_t bytes, off_t offset) {
  return transferred(number_of("pread"), __real_pread, fd, to, bytes, offset);
}

ssize_t __real_pwrite(int fd, const void* from, std::size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void* from, std::size_t bytes, off_t offset) {
  return transferred(number_of("pwrite"), __real_pwrite, fd, from, bytes, offset);
}

int __real_ftruncate(int fd, off_t size);
int __wrap_ftruncate(int fd, off_t size) {
  return made(number_of("ftruncate"), [&] { return __real_ftruncate(fd, size); });
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd) {
  return made(number_of("fdatasync"),
              [&] { return is_on_for_this_thread() ? 0 : __real_fdatasync(fd); });
}

int __real_fsync(int fd);
int __wrap_fsync(int fd) {
  return made(number_of("fsync"), [&] { return is_on_for_this_thread() ? 0 : __real_fsync(fd); });
}

int __real_unlinkat(int folder, const char* path, int flags);
int __wrap_unlinkat(int folder, const char* path, int flags) {
  return made(number_of("unlinkat"), [&] { return __real_unlinkat(folder, path, flags); });
}

int __real_renameat(int from_folder, const char* from, int to_folder, const char* to);
int __wrap_renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return made(number_of("renameat"),
              [&] { return __real_renameat(from_folder, from, to_folder, to); });
}

void* __real_mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (const int e = failure(number_of("mmap")); e != 0) {
    errno = e;
    return MAP_FAILED;
  }
  return __real_mmap(at, bytes, protection, flags, fd, offset);
}

int __real_munmap(void* data, std::size_t bytes);
int __wrap_munmap(void* data, std::size_t bytes) {
  const int e = failure(number_of("munmap"));
  if (e == 0) return __real_munmap(data, bytes);
  using namespace gpufs::testing;
  const std::lock_guard lock(left_mutex);
  if (left_count < left_mapped.size()) left_mapped[left_count++] = {data, bytes};
  errno = e;
  return -1;
}

int __real_madvise(void* data, std::size_t bytes, int advice);
int __wrap_madvise(void* data, std::size_t bytes, int advice) {
  return made(number_of("madvise"), [&] { return __real_madvise(data, bytes, advice); });
}

int __real_mincore(void* data, std::size_t bytes, unsigned char* to);
int __wrap_mincore(void* data, std::size_t bytes, unsigned char* to) {
  return made(number_of("mincore"), [&] { return __real_mincore(data, bytes, to); });
}

ssize_t __real_process_vm_readv(pid_t process, const iovec* local, unsigned long local_count,
                                const iovec* remote, unsigned long remote_count,
                                unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t process, const iovec* local, unsigned long local_count,
                                const iovec* remote, unsigned long remote_count,
                                unsigned long flags) {
  return made(number_of("process_vm_readv"), [&] {
    return __real_process_vm_readv(process, local, local_count, remote, remote_count, flags);
  });
}

int __real_sysinfo(struct sysinfo* to);
int __wrap_sysinfo(struct sysinfo* to) {
  return made(number_of("sysinfo"), [&] { return __real_sysinfo(to); });
}

int __real_getrlimit(__rlimit_resource_t what, struct rlimit* to);
int __wrap_getrlimit(__rlimit_resource_t what, struct rlimit* to) {
  return made(number_of("getrlimit"), [&] { return __real_getrlimit(what, to); });
}

int __real_poll(struct pollfd* fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd* fds, nfds_t count, int timeout_ms) {
  return made(number_of("poll"), [&] { return __real_poll(fds, count, timeout_ms); });
}

int __real_sigaction(int signal, const struct sigaction* action, struct sigaction* before);
int __wrap_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  return made(number_of("sigaction"), [&] { return __real_sigaction(signal, action, before); });
}

int __real_prctl(int option, ...);
int __wrap_prctl(int option, ...) {
  std::va_list rest;
  va_start(rest, option);
  std::array<unsigned long, 4> a{};
  for (unsigned long& argument : a) argument = va_arg(rest, unsigned long);
  va_end(rest);
  return made(number_of("prctl"), [&] { return __real_prctl(option, a[0], a[1], a[2], a[3]); });
}

long __real_syscall(long number, ...);
// Takes six arguments, as syscall(2) does, however many there are. The last of them is on the
// caller's stack, and may be anything there.
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...) {
  std::va_list rest;
  va_start(rest, number);
  std::array<long, 6> a{};
  for (long& argument : a) argument = va_arg(rest, long);
  va_end(rest);
  const auto call = [&] { return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
  const std::string_view name = name_of_call(number, a[1]);
  if (name.empty()) return call();
  const int e = failure(number_of(name));
  if (e == 0) return call();
  if (name == "close") (void)call();
  if (e == done_in_part) {
    if (a[2] > 1) a[2] /= 2;
    return call();
  }
  errno = e;
  return -1;
}

}  // extern "C"

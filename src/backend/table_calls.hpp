// System calls with descriptor tables, which older C libraries do not have. The numbers are the
// same on all architectures.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpufs {

inline constexpr long close_range_call = 436;

// Gives the calling thread a table with copies of only the numbers 0, 1 and 2. Sets errno on
// failure. It does not use unshare(2), which copies all numbers: then a program's pipe would not
// end, nor its lock go, when the program closes it.
inline bool take_own_table() {
  constexpr unsigned close_range_unshare = 2;
  return syscall(close_range_call, 3u, ~0u, close_range_unshare) == 0;
}

// Replaces the copies of 0, 1 and 2, in the calling thread's own table, by descriptors that can
// neither read nor write. A program's pipe then ends when the program closes it.
inline void give_up_streams() {
  (void)syscall(close_range_call, 0u, 2u, 0u);
  for (int i = 0; i < 3; ++i)
    (void)syscall(SYS_openat, AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

// Returns a copy, in the calling thread's table, of a descriptor of another thread's table (needs
// Linux 6.9), or of the main thread's table for `thread` 0. Closes at exec. -errno on failure.
inline int copy_of(long thread, int descriptor) {
  constexpr long pidfd_open_call = 434, pidfd_getfd_call = 438;
  constexpr unsigned pidfd_thread = O_EXCL;
  const auto owner = static_cast<int>(thread != 0 ? syscall(pidfd_open_call, thread, pidfd_thread)
                                                  : syscall(pidfd_open_call, getpid(), 0u));
  if (owner < 0) return -errno;
  const auto fd = static_cast<int>(syscall(pidfd_getfd_call, owner, descriptor, 0u));
  const int copied = fd < 0 ? -errno : fd;
  (void)syscall(SYS_close, owner);
  return copied;
}

}  // namespace gpufs

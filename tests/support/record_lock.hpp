// POSIX record locks (fcntl(2)) on whole files.
#pragma once

#include <fcntl.h>

namespace gpufs::testing {

// `type`: F_RDLCK, F_WRLCK or F_UNLCK. Does not wait. Returns whether it succeeded.
inline bool set_lock(int fd, short type) {
  struct flock lock{};
  lock.l_type = type;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

// Returns whether any process holds a POSIX lock on the file of a descriptor.
inline bool is_locked(int fd) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace gpufs::testing

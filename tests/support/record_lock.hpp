// POSIX record locks (fcntl(2)) of a test's own on whole files.
#pragma once

#include <fcntl.h>

namespace gpufs::testing {

// `type`: F_RDLCK, F_WRLCK or F_UNLCK. Does not wait. Whether that was done.
inline bool set_lock(int fd, short type) {
  struct flock lock{};
  lock.l_type = type;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

// Whether anyone holds a POSIX lock on the file of a descriptor.
inline bool is_locked(int fd) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace gpufs::testing

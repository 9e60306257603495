// The program's standard streams, closed for a time.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>

namespace gpufs::testing {

// Closes descriptors 0, 1 and 2 for its lifetime. Nothing may be printed meanwhile.
class closed_streams {
 public:
  closed_streams() {
    for (int i = 0; i < 3; ++i) {
      saved_[static_cast<std::size_t>(i)] = fcntl(i, F_DUPFD_CLOEXEC, 10);
      (void)::close(i);
    }
  }
  ~closed_streams() {
    for (int i = 0; i < 3; ++i) {
      const int saved = saved_[static_cast<std::size_t>(i)];
      if (saved < 0) continue;
      (void)dup2(saved, i);
      (void)::close(saved);
    }
  }
  closed_streams(const closed_streams&) = delete;
  closed_streams& operator=(const closed_streams&) = delete;

  // Returns whether a descriptor is open under any of the numbers.
  static bool any_is_open() {
    for (int i = 0; i < 3; ++i) {
      if (fcntl(i, F_GETFD) >= 0) return true;
    }
    return false;
  }

 private:
  std::array<int, 3> saved_{-1, -1, -1};
};

}  // namespace gpufs::testing

/** Waits that end. */
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>

namespace gdev {

/** Waits until a file is ready. Returns 0; ETIMEDOUT. Signals do not make it longer. */
[[nodiscard]] inline int wait_for(int file, short what,
                                  std::chrono::steady_clock::time_point deadline) noexcept {
  using clock = std::chrono::steady_clock;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
    if (left <= 0) {
      return ETIMEDOUT;
    }
    pollfd ready{file, what, 0};
    const int count = poll(&ready, 1, static_cast<int>(left));
    if (count > 0) {
      return 0;
    }
    if (count < 0 && errno != EINTR) {
      return errno;
    }
  }
}

}  // namespace gdev

#include "backend/stream_numbers.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace gpufs {

// System calls bypass the C library, as in descriptor_table.cpp.

void stream_numbers::enter() noexcept {
  std::uint32_t s = state_.load(std::memory_order_relaxed);
  for (;;) {
    // The closes of O_PATH descriptors wait for nothing.
    if ((s & closing) != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
      s = state_.load(std::memory_order_relaxed);
      continue;
    }
    // Acquire: pairs with the release after the closes in leave(). Otherwise this thread's open
    // could find a number occupied that is then closed.
    if (state_.compare_exchange_weak(s, s + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed))
      return;
  }
}

int stream_numbers::above(int path_descriptor) noexcept {
  while (path_descriptor >= 0 && path_descriptor <= 2) {
    // Relaxed: leave() by this thread publishes it.
    state_.fetch_or(occupied << path_descriptor, std::memory_order_relaxed);
    const auto next = static_cast<int>(syscall(SYS_fcntl, path_descriptor, F_DUPFD_CLOEXEC, 0));
    path_descriptor = next < 0 ? -errno : next;
  }
  return path_descriptor;
}

void stream_numbers::leave() noexcept {
  std::uint32_t s = state_.load(std::memory_order_relaxed), next = 0;
  do {
    next = s - 1;
    if ((next & threads) == 0 && next != 0) next |= closing;
    // Acquire and release: the opens of all threads that were inside come before the closes by the
    // last of them.
  } while (
      !state_.compare_exchange_weak(s, next, std::memory_order_acq_rel, std::memory_order_relaxed));
  if ((next & closing) == 0) return;
  close_occupied(next);
  state_.store(0, std::memory_order_release);  // pairs with enter()
}

void stream_numbers::reset_in_child() noexcept {
  close_occupied(state_.load(std::memory_order_relaxed));
  state_.store(0, std::memory_order_relaxed);
}

void stream_numbers::close_occupied(std::uint32_t state) noexcept {
  for (int number = 0; number <= 2; ++number) {
    if ((state & occupied << number) == 0) continue;
    // The program may have opened its stream again meanwhile, with dup2(2).
    const long flags = syscall(SYS_fcntl, number, F_GETFL);
    if (flags >= 0 && (flags & O_PATH) != 0) (void)syscall(SYS_close, number);
  }
}

}  // namespace gpufs

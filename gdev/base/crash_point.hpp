/**
 * Points at which a test ends or stops a process: after each step that changes shared state.
 *
 * They exist only in the tests' own build of the library and the daemon (GDEV_CRASH_POINTS). There
 * GDEV_TEST_CRASH=NAME:N names a point: the process that comes to it for the Nth time is killed at
 * once, as if by `kill -9`; with NAME:N:stop it is stopped instead, with NAME:N:sleep its thread
 * sleeps for a while. A test finds all points in the sources, so each name is a literal, and is
 * used once.
 */
#pragma once

#ifdef GDEV_CRASH_POINTS
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#endif

namespace gdev {

#ifdef GDEV_CRASH_POINTS

class chosen_crash {
 public:
  chosen_crash() {
    const char* const text = std::getenv("GDEV_TEST_CRASH");
    const std::string_view all = text == nullptr ? "" : text;
    const std::size_t end = all.find(':');
    if (end != std::string_view::npos) {
      name_ = all.substr(0, end);
      left_ = std::atoi(all.data() + end + 1);
      signal_ = all.ends_with(":stop") ? SIGSTOP : all.ends_with(":sleep") ? 0 : SIGKILL;
    }
  }
  void reach(std::string_view name) {
    if (name == name_ && left_.fetch_sub(1) == 1) {
      signal_ == 0 ? std::this_thread::sleep_for(std::chrono::seconds{5})
                   : static_cast<void>(std::raise(signal_));
    }
  }

 private:
  std::string name_;
  std::atomic<int> left_ = 0;
  int signal_ = SIGKILL;
};

inline void crash_point(const char* name) noexcept {
  static chosen_crash& chosen = *new chosen_crash;  // threads may come here while the process ends
  chosen.reach(name);
}

#else

inline void crash_point(const char* /*name*/) noexcept {}

#endif

}  // namespace gdev

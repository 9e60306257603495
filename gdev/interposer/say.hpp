/** Lines of gdev on a program's standard error. */
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace gdev {

/** Returns a variable of the environment; empty: it is not set. */
[[nodiscard]] inline const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/** Returns the name of this process's virtual GPU. */
[[nodiscard]] inline const char* vgpu_name() noexcept {
  const char* const name = variable("GDEV_VGPU");
  return *name == '\0' ? "default" : name;
}

[[nodiscard]] inline double mebibytes(std::uint64_t bytes) noexcept {
  return static_cast<double>(bytes) / (1 << 20);
}

/** Writes a line, if standard error takes it at once. */
inline void say(const char* line) noexcept {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    static_cast<void>(!write(STDERR_FILENO, line, std::strlen(line)));
  }
}

}  // namespace gdev

#include "interposer/notices.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

#include "interposer/client.hpp"
#include "protocol/account.hpp"

namespace gdev {

void say(const char* format, ...) noexcept {
  std::array<char, 400> line{};
  const int before = std::snprintf(line.data(), line.size(),
                                   "gdev: process %d, virtual GPU %s: ", getpid(), vgpu_name());
  const auto begin = std::min<std::size_t>(std::max(before, 0), line.size() - 2);
  std::va_list values;
  va_start(values, format);
  const int more = std::vsnprintf(&line[begin], line.size() - 1 - begin, format, values);
  va_end(values);
  const std::size_t end = std::min<std::size_t>(begin + std::max(more, 0), line.size() - 2);
  line[end] = '\n';
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    static_cast<void>(!write(STDERR_FILENO, line.data(), end + 1));
  }
}

std::array<char, 40> text_of_limit(std::uint64_t bytes) noexcept {
  std::array<char, 40> text{};
  if (bytes >= account_units_max * account_unit) {
    std::snprintf(text.data(), text.size(), "no limit");
  } else {
    std::snprintf(text.data(), text.size(), "limit %.1f MiB", mebibytes(bytes));
  }
  return text;
}

}  // namespace gdev

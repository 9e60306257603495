#include "mount/descriptors.hpp"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace gpufs {
namespace {

// The number of open descriptors among the first 1,024. If the limit is higher, an undercount is
// harmless: a quarter of the rest stays free.
std::size_t descriptors_open(std::uint64_t limit) {
  std::array<pollfd, 1024> looked_at;
  const std::size_t count = std::min<std::uint64_t>(limit, looked_at.size());
  for (std::size_t fd = 0; fd < count; ++fd) looked_at[fd] = {static_cast<int>(fd), 0, POLLNVAL};
  if (poll(looked_at.data(), count, 0) < 0) return 0;
  return static_cast<std::size_t>(
      std::count_if(looked_at.begin(), looked_at.begin() + static_cast<std::ptrdiff_t>(count),
                    [](const pollfd& p) { return (p.revents & POLLNVAL) == 0; }));
}

}  // namespace

std::size_t descriptors_max(std::size_t threads, bool raises_limit) {
  constexpr std::size_t of_a_thread = 2;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
  if (raises_limit && limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  const std::uint64_t all =
      limit.rlim_cur == RLIM_INFINITY ? std::uint64_t{1} << 20 : std::uint64_t{limit.rlim_cur};
  const std::size_t taken = descriptors_open(all) + of_a_thread * threads;
  return std::clamp<std::size_t>(all > taken ? (all - taken) / 4 * 3 : 0, 8, std::size_t{1} << 20);
}

}  // namespace gpufs

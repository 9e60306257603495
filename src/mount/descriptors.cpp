#include "mount/descriptors.hpp"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
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

// The number of descriptors that the process may have. Raises the soft limit if `raises` and if
// that is possible.
std::uint64_t limit_of_process(bool raises) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 512;  // hardly any system allows less
  if (raises && limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur == RLIM_INFINITY ? std::uint64_t{1} << 20 : std::uint64_t{limit.rlim_cur};
}

// The sum of all grants. Relaxed: it orders no other memory.
std::atomic<std::size_t> granted{0};

}  // namespace

descriptor_grant::descriptor_grant(std::size_t threads, bool raises_limit) {
  constexpr std::size_t of_a_thread = 2, files_min = 8, files_most = std::size_t{1} << 20;
  const std::uint64_t limit = limit_of_process(raises_limit);
  const std::size_t now = descriptors_open(limit), of_threads = of_a_thread * threads;
  std::size_t others = granted.load(std::memory_order_relaxed);
  do {
    const std::uint64_t taken = now + of_threads + others;
    files_max_ =
        std::clamp<std::size_t>(limit > taken ? (limit - taken) / 8 * 3 : 0, files_min, files_most);
    all_ = files_max_ + of_threads;
  } while (!granted.compare_exchange_weak(others, others + all_, std::memory_order_relaxed));
}

void descriptor_grant::keep_only(std::size_t open) {
  const std::size_t kept = std::min(open, all_);
  granted.fetch_sub(all_ - kept, std::memory_order_relaxed);
  all_ = kept;
}

descriptor_grant::~descriptor_grant() { granted.fetch_sub(all_, std::memory_order_relaxed); }

}  // namespace gpufs

#include "interposer/host_pool.hpp"

#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <thread>
#include <utility>

#include "base/crash_point.hpp"
#include "interposer/client.hpp"
#include "interposer/driver.hpp"

namespace gdev {

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
/** Threads that make segments at the same time. */
constexpr std::size_t threads_max = 8;

/** Returns a segment that is not pinned yet, or null. */
std::byte* map_segment() noexcept {
  constexpr std::size_t bytes = host_pool::segment_bytes;
  void* const mapped = mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before =
      (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
  if (before != 0) {
    munmap(begin, before);
  }
  std::byte* const segment = begin + before;
  munmap(segment + bytes, huge_page - before);
  madvise(segment, bytes, MADV_HUGEPAGE);
  madvise(segment, bytes, MADV_DONTFORK);
  // Page by page: whoever maps memory in this process meanwhile, as allocations on the GPU do,
  // waits for each call.
  for (std::size_t at = 0; at < bytes; at += huge_page) {
    if (madvise(segment + at, huge_page, MADV_POPULATE_WRITE) != 0) {
      break;  // an older kernel; or no memory: then pinning says so
    }
  }
  return segment;
}

std::uint64_t address_of(std::byte* place) noexcept {
  return reinterpret_cast<std::uintptr_t>(place);
}

void pin(std::byte* segment) noexcept {
  // Without it copies are slow, and right.
  static_cast<void>(call_driver<CUresult>(id_cuMemHostRegister_v2, static_cast<void*>(segment),
                                          host_pool::segment_bytes,
                                          unsigned{CU_MEMHOSTREGISTER_PORTABLE}));
}

}  // namespace

std::byte* host_pool::make_segment() noexcept {
  std::byte* const made = map_segment();
  if (made != nullptr) {
    pin(made);
  }
  return made;
}

std::size_t host_pool::add_segments(std::size_t count) {
  std::size_t had = 0;
  {
    const std::lock_guard lock(mutex_);
    had = segments_.size();
  }
  // Without a daemon nobody says how much there may be, and what stays on the GPU keeps others off.
  if (const int error = ask_for_host_memory((had + count) * segment_bytes);
      error != 0 && (error != ENOTCONN || has_daemon())) {
    return 0;
  }
  crash_point("host_asked");
  std::vector<std::byte*> made(count);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      made[i] = map_segment();
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t helpers_max = std::min<std::size_t>(threads_max, count) - 1;
  try {
    while (helpers.size() < helpers_max) {
      helpers.emplace_back(work);
    }
  } catch (const std::exception&) {
    // No more threads, or no memory for one: those that are there do it.
  }
  work();
  for (std::thread& one : helpers) {
    one.join();
  }
  crash_point("segments_mapped");
  std::size_t added = 0;
  for (std::byte* const segment : made) {
    if (segment != nullptr) {
      pin(segment);
      const std::lock_guard lock(mutex_);
      segments_.push_back(segment);
      free_.add(address_of(segment), segment_bytes);
      ++added;
    }
  }
  crash_point("segments_pinned");
  if (added < count) {
    static_cast<void>(ask_for_host_memory((had + added) * segment_bytes));
  }
  return added;
}

bool host_pool::prepare(std::size_t bytes, std::size_t most) {
  std::size_t free_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    free_bytes = free_.bytes();
  }
  if (bytes <= free_bytes) {
    return false;
  }
  const auto segments = [](std::size_t of) { return (of + segment_bytes - 1) / segment_bytes; };
  const std::size_t lacking = segments(bytes - free_bytes);
  const std::size_t wanted = std::min(lacking, segments(most));
  return add_segments(wanted) == wanted && wanted < lacking;
}

std::byte* host_pool::take(std::size_t bytes) {
  for (;;) {
    std::vector<std::byte*> to_pin;
    {
      const std::lock_guard lock(mutex_);
      to_pin = std::exchange(unpinned_, {});
    }
    for (std::byte* const segment : to_pin) {
      pin(segment);
    }
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = free_.take(bytes)) {
        return reinterpret_cast<std::byte*>(*found);
      }
    }
    if (add_segments(1) == 0) {
      return nullptr;
    }
  }
}

void host_pool::give(std::byte* place, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.give(address_of(place), bytes);
}

void host_pool::give_back_segments() {
  std::vector<std::byte*> removed;
  std::size_t left = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t begin : free_.remove_free_segments()) {
      const auto found = std::find_if(segments_.begin(), segments_.end(),
                                      [begin](auto* one) { return address_of(one) == begin; });
      removed.push_back(*found);
      segments_.erase(found);
      std::erase(unpinned_, removed.back());
    }
    left = segments_.size();
  }
  for (std::byte* const segment : removed) {
    call_driver<CUresult>(id_cuMemHostUnregister, static_cast<void*>(segment));
    munmap(segment, segment_bytes);
  }
  if (!removed.empty()) {
    static_cast<void>(ask_for_host_memory(left * segment_bytes));
  }
}

void host_pool::forget_context() {
  const std::lock_guard lock(mutex_);
  unpinned_ = segments_;
}

}  // namespace gdev

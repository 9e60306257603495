#include "interposer/host_pool.hpp"

#include <cuda.h>
#include <sys/mman.h>

#include <utility>

#include "interposer/client.hpp"
#include "interposer/driver.hpp"

namespace gdev {

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

/** Returns a new segment, or null. Its pages are there, and no forked child has them. */
std::byte* make_segment() noexcept {
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
  if (madvise(segment, bytes, MADV_POPULATE_WRITE) != 0) {
    // An older kernel; or no memory: then pinning says so.
  }
  return segment;
}

void pin(std::byte* segment) noexcept {
  // Without it copies are slow, and right.
  static_cast<void>(call_driver<CUresult>(id_cuMemHostRegister_v2, static_cast<void*>(segment),
                                          host_pool::segment_bytes,
                                          unsigned{CU_MEMHOSTREGISTER_PORTABLE}));
}

}  // namespace

bool host_pool::add_segment() {
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = segments_.size();
  }
  if (ask_for_host_memory((count + 1) * segment_bytes) != 0) {
    return false;
  }
  std::byte* const segment = make_segment();
  if (segment == nullptr) {
    return false;
  }
  pin(segment);
  const std::lock_guard lock(mutex_);
  segments_.push_back(segment);
  free_.emplace(segment_bytes, segment);
  return true;
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
      if (const auto found = free_.lower_bound(bytes); found != free_.end()) {
        const auto [size, place] = *found;
        free_.erase(found);
        if (size > bytes) {
          free_.emplace(size - bytes, place + bytes);
        }
        return place;
      }
    }
    if (!add_segment()) {
      return nullptr;
    }
  }
}

void host_pool::give(std::byte* place, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.emplace(bytes, place);
}

void host_pool::forget_context() {
  const std::lock_guard lock(mutex_);
  unpinned_ = segments_;
}

}  // namespace gdev

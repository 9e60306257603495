#include "support/failing_allocations.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace gpufs::testing {
namespace {

enum class mode : int { off, owner, others, all };
std::atomic<mode> current{mode::off};
std::atomic<std::uint64_t> calls{0}, first{0},
    last{0};  // the allocations from the first to the last, counted from 1, fail
thread_local bool is_owner = false;
thread_local bool is_own = false;

// Whether an allocation of the calling thread must fail.
bool fails() {
  const mode m = current.load(std::memory_order_relaxed);
  if (m == mode::off || is_own || (m == mode::owner && !is_owner) ||
      (m == mode::others && is_owner))
    return false;
  const std::uint64_t number = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  return number >= first.load(std::memory_order_relaxed) &&
         number <= last.load(std::memory_order_relaxed);
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails()) throw std::bad_alloc();
  const std::size_t whole = alignment == 0 ? 0 : (bytes + alignment - 1) / alignment * alignment;
  void* const p = alignment == 0 ? std::malloc(bytes == 0 ? 1 : bytes)
                                 : std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

failing_allocation::failing_allocation(of whom, std::uint64_t nth, bool for_ever) {
  is_owner = true;
  calls = 0;
  first = nth;
  last = nth != 0 && for_ever ? ~std::uint64_t{0} : nth;
  current = whom == of::this_thread     ? mode::owner
            : whom == of::other_threads ? mode::others
                                        : mode::all;
}
failing_allocation::~failing_allocation() {
  current = mode::off;
  is_owner = false;
}
void failing_allocation::stop() { last = std::min(last.load(), calls.load()); }
bool failing_allocation::has_struck() const { return first != 0 && calls >= first; }
std::uint64_t failing_allocation::count() const { return calls; }

bool& own_thread() { return is_own; }

}  // namespace gpufs::testing

// All forms are replaced: a sanitizer has its own versions of the others, and these functions must
// not free their memory.
namespace {
template <class Allocate>
void* or_null(const Allocate& allocate) noexcept {
  try {
    return allocate();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
}  // namespace

void* operator new(std::size_t bytes) { return gpufs::testing::allocate(bytes, 0); }
void* operator new[](std::size_t bytes) { return gpufs::testing::allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return gpufs::testing::allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return or_null([bytes] { return operator new(bytes); });
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return or_null([bytes] { return operator new(bytes); });
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return or_null([bytes, alignment] { return operator new(bytes, alignment); });
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t&) noexcept {
  return or_null([bytes, alignment] { return operator new(bytes, alignment); });
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }

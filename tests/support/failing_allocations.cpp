#include "support/failing_allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace gpufs::testing {
namespace {

enum class mode : int { off, owner, others };
std::atomic<mode> current{mode::off};
std::atomic<std::uint64_t> left{0};  // until the one that fails; 0: it has failed
thread_local bool is_owner = false;

// Whether an allocation of the calling thread is the one.
bool fails() {
  const mode m = current.load(std::memory_order_relaxed);
  if (m == mode::off || (m == mode::owner) != is_owner) return false;
  std::uint64_t now = left.load(std::memory_order_relaxed);
  while (now != 0 && !left.compare_exchange_weak(now, now - 1, std::memory_order_relaxed)) {
  }
  return now == 1;
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

failing_allocation::failing_allocation(of whom, std::uint64_t nth) {
  is_owner = true;
  left = nth;
  current = whom == of::this_thread ? mode::owner : mode::others;
}
failing_allocation::~failing_allocation() {
  current = mode::off;
  is_owner = false;
}
bool failing_allocation::has_struck() const { return left == 0; }

}  // namespace gpufs::testing

// All forms: a sanitizer has its own of those that are not replaced, whose memory these must not free.
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
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return operator new(bytes, alignment); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return or_null([bytes] { return operator new(bytes); });
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return or_null([bytes] { return operator new(bytes); });
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return or_null([bytes, alignment] { return operator new(bytes, alignment); });
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
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

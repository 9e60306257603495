#include "backend/mapped_writes.hpp"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <new>

#include "backend/counted_mapping.hpp"
#include "backend/guarded_copy.hpp"
#include "backend/page_cache_pages.hpp"
#include "gpufs/base/platform.cuh"

namespace gpufs {
namespace {

constexpr unsigned long tmpfs = 0x0102'1994;  // as in the kernel's uapi header magic.h

bool reaches(int fd, std::uint64_t end) {
  struct stat s;
  return fstat(fd, &s) == 0 && static_cast<std::uint64_t>(s.st_size) >= end;
}

}  // namespace

std::unique_ptr<mapped_writes> mapped_writes::make(int fd, std::uint64_t end) noexcept {
  struct statfs s;
  if (!reaches(fd, end) || fstatfs(fd, &s) != 0 || static_cast<unsigned long>(s.f_type) != tmpfs ||
      !guard_copies())
    return nullptr;
  return std::unique_ptr<mapped_writes>(new (std::nothrow) mapped_writes);
}

mapped_writes::part::~part() { copy_mapping::end(data, part_bytes); }

mapped_writes::~mapped_writes() {
  // Relaxed: the destroying thread got this object from its users, which orders their stores.
  for (const std::atomic<part*>& p : parts_) delete p.load(std::memory_order_relaxed);
}

bool mapped_writes::write(int fd, const char* from, std::uint64_t bytes,
                          std::uint64_t offset) noexcept {
  const bool done = try_write(fd, from, bytes, offset);
  // Relaxed: a hint. Stored only when it changes, because all writers share its cache line.
  if (is_used_.load(std::memory_order_relaxed) != done)
    is_used_.store(done, std::memory_order_relaxed);
  return done;
}

bool mapped_writes::try_write(int fd, const char* from, std::uint64_t bytes,
                              std::uint64_t offset) noexcept {
  const std::uint64_t number = offset / part_bytes, in_part = offset % part_bytes;
  if (bytes < bytes_min || number >= parts_max || bytes > part_bytes - in_part) return false;
  struct stat s;
  if (fstat(fd, &s) != 0) return false;
  const auto size = static_cast<std::uint64_t>(s.st_size);
  if (offset > size || bytes > size - offset) return false;
  part* const p = find_part(fd, number);
  if (p == nullptr || !guard_copies()) return false;
  const std::uint64_t size_here = std::min(size - number * part_bytes, part_bytes);
  const std::uint64_t first = in_part / window_bytes, last = (in_part + bytes - 1) / window_bytes;
  for (std::uint64_t w = first; w <= last; ++w)
    if (!is_ready(*p, w, std::min(size_here - w * window_bytes, window_bytes))) return false;
  GPUFS_SCHEDULE_POINT("mapped_writes.copy");
  if (copy_guarded(p->data + in_part, from, bytes - tail_bytes, guarded::destination)) return true;
  for (std::uint64_t w = first; w <= last; ++w) p->windows[w].store(0, std::memory_order_relaxed);
  return false;
}

// Whether a window is ready for copies. Relaxed throughout: a window says only how to write, never
// what the bytes are. Several threads may check at once, with the same result.
bool mapped_writes::is_ready(part& of, std::uint64_t window, std::uint64_t bytes) noexcept {
  std::atomic<std::uint32_t>& w = of.windows[window];
  const std::uint32_t seen = w.load(std::memory_order_relaxed), now = coarse_seconds();
  if ((seen & ready) != 0 && ((now - seen) & ~ready) < trusted_seconds) return true;
  char* const data = of.data + window * window_bytes;
  if (!are_in_page_cache<window_bytes>(data, bytes)) return false;
#if defined(MADV_POPULATE_WRITE)
  // Since Linux 5.14; before, each page is faulted in by its first write. It fails when the file
  // has become shorter.
  if (madvise(data, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) return false;
#endif
  w.store(ready | now, std::memory_order_relaxed);
  return true;
}

mapped_writes::part* mapped_writes::find_part(int fd, std::uint64_t number) noexcept {
  // Acquire: pairs with the exchange below. Without it the part's fields might not be visible.
  part* known = parts_[number].load(std::memory_order_acquire);
  if (known != nullptr) return known;
  char* const data =
      copy_mapping::make(fd, part_bytes, number * part_bytes, PROT_READ | PROT_WRITE);
  if (data == nullptr) return nullptr;
  part* const made = new (std::nothrow) part(data);
  if (made == nullptr) copy_mapping::end(data, part_bytes);
  if (made == nullptr ||
      parts_[number].compare_exchange_strong(known, made, std::memory_order_acq_rel))
    return made;
  delete made;  // another thread was faster
  return known;
}

}  // namespace gpufs

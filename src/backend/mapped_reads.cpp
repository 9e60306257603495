#include "backend/mapped_reads.hpp"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <new>

#include "backend/counted_mapping.hpp"
#include "backend/guarded_copy.hpp"
#include "backend/page_cache_pages.hpp"
#include "gpufs/base/platform.cuh"

namespace gpufs {
namespace {

// Acquire: the last byte is loaded after all bytes were copied. Without it a truncation during the
// copy could go unnoticed. g++ hides fences from ThreadSanitizer; x86 needs none.
void after_all_copied() {
#if defined(__SANITIZE_THREAD__)
  std::atomic_signal_fence(std::memory_order_acquire);
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

}  // namespace

std::unique_ptr<mapped_reads> mapped_reads::make(int fd) noexcept {
  struct stat s;
  if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) ||
      static_cast<std::uint64_t>(s.st_size) < file_bytes_min)
    return nullptr;
  if (!guard_copies()) return nullptr;
  const auto size = static_cast<std::uint64_t>(s.st_size);
  // The mapping first: its limit also bounds the windows of a sparse file, to 8 MiB for all files.
  char* const data = copy_mapping::make(fd, size, 0, PROT_READ);
  if (data == nullptr) return nullptr;
  std::unique_ptr<window[]> windows(new (std::nothrow)
                                        window[(size + window_bytes - 1) / window_bytes]());
  if (windows == nullptr) {
    copy_mapping::end(data, size);
    return nullptr;
  }
  // Only pages that have left the page cache since the check are read through the mapping. Read
  // just these, without readahead.
  (void)madvise(data, size, MADV_RANDOM);
  auto* made = new (std::nothrow) mapped_reads(data, size, std::move(windows));
  if (made == nullptr) copy_mapping::end(data, size);
  return std::unique_ptr<mapped_reads>(made);
}

mapped_reads::mapped_reads(char* data, std::uint64_t size, std::unique_ptr<window[]> windows)
    : data_(data), size_(size), windows_(std::move(windows)) {}

mapped_reads::~mapped_reads() { copy_mapping::end(data_, size_); }

bool mapped_reads::read(char* to, std::uint64_t bytes, std::uint64_t offset) noexcept {
  if (bytes == 0 || offset >= size_ || bytes > size_ - offset) return false;
  const std::uint64_t number = offset / window_bytes;
  const std::uint64_t last = offset + bytes - 1;
  if (last / window_bytes != number) return false;
  window& w = windows_[number];
  if (!copies_are_guarded() || !may_use(w, number)) return false;

  // Checked before the copy too, so that a read that ends with a zero is not copied in vain.
  char tail = 0;
  bool there = copy_guarded(&tail, data_ + last, 1);
  if (there && tail == 0) return false;
  GPUFS_SCHEDULE_POINT("mapped_reads.copy");
  there = there && copy_guarded(to, data_ + offset, bytes);
  after_all_copied();
  there = there && copy_guarded(&tail, data_ + last, 1);
  if (!there) w.store(0, std::memory_order_relaxed);
  return there && tail != 0;
}

void mapped_reads::expect(std::uint64_t bytes, std::uint64_t offset) const noexcept {
  if (bytes == 0 || offset >= size_ || bytes > size_ - offset) return;
  if ((windows_[offset / window_bytes].load(std::memory_order_relaxed) & ready) == 0) return;
  // The processor's own prefetcher continues once the copy runs.
  constexpr std::uint64_t line_bytes = 64, lines_max = 12;
  const char* from = data_ + offset;
  __builtin_prefetch(from + bytes - 1);
  for (std::uint64_t line = 0; line < std::min(lines_max, bytes / line_bytes); ++line)
    __builtin_prefetch(from + line * line_bytes);
}

// Whether the window is ready for copies. Relaxed throughout: a window says only how to read, never
// what the bytes are.
bool mapped_reads::may_use(window& w, std::uint64_t number) noexcept {
  std::uint32_t seen = w.load(std::memory_order_relaxed);
  const std::uint32_t now = coarse_seconds();
  if ((seen & ready) != 0) {
    if (((now - seen) & ~ready) < trusted_seconds) return true;
  } else if (seen < reads_before) {
    // Threads may overwrite each other's count. That only delays the window.
    w.store(seen + 1, std::memory_order_relaxed);
    return false;
  }
  // Only one thread checks the page cache. Meanwhile the others use pread.
  if (!w.compare_exchange_strong(seen, 0, std::memory_order_relaxed)) return false;
  if (!prepare(number)) return false;
  w.store(ready | now, std::memory_order_relaxed);
  return true;
}

// Faults the window in, if that needs no I/O.
bool mapped_reads::prepare(std::uint64_t number) const noexcept {
  if (!guard_copies()) return false;
  const std::uint64_t offset = number * window_bytes;
  const std::uint64_t bytes = std::min(window_bytes, size_ - offset);
  if (!are_in_page_cache<window_bytes>(data_ + offset, bytes)) return false;
#if defined(MADV_POPULATE_READ)
  // Since Linux 5.14; before, each page is faulted in by its first read. It fails when the file has
  // become shorter, which mincore does not see with large folios.
  if (madvise(data_ + offset, bytes, MADV_POPULATE_READ) != 0 && errno != EINVAL) return false;
#endif
  return true;
}

}  // namespace gpufs

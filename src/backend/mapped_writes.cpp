#include "backend/mapped_writes.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "backend/guarded_copy.hpp"
#include "gpufs/base/platform.cuh"

namespace gpufs {
namespace {

// As in the kernel's uapi header magic.h.
constexpr unsigned long tmpfs = 0x0102'1994, ext4 = 0xef53;

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23  // Linux 5.14; before it, an error
#endif

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Whether all pages are in the page cache.
bool are_there(char* data, std::uint64_t bytes) {
  std::array<unsigned char, mapped_writes::bytes_max / 4096 + 1> resident;  // pages are no smaller
  if (mincore(data, bytes, resident.data()) != 0) return false;
  const auto pages = static_cast<std::ptrdiff_t>((bytes + page_bytes() - 1) / page_bytes());
  return std::all_of(resident.begin(), resident.begin() + pages, [](unsigned char r) { return (r & 1) != 0; });
}

}  // namespace

std::unique_ptr<mapped_writes> mapped_writes::make(int fd) noexcept {
  struct statfs s;
  if (fstatfs(fd, &s) != 0 || !guard_copies()) return nullptr;
  const auto type = static_cast<unsigned long>(s.f_type);
  if (type != tmpfs && type != ext4) return nullptr;
  std::unique_ptr<mapped_writes> made(new (std::nothrow) mapped_writes(type == tmpfs));
  if (made == nullptr || made->part(fd, 0) == nullptr) return nullptr;
  return made;
}

mapped_writes::~mapped_writes() {
  for (const std::atomic<char*>& p : parts_) {
    // Relaxed: whoever destroys this got it from those who used it.
    if (char* const data = p.load(std::memory_order_relaxed)) (void)munmap(data, part_bytes);
  }
}

bool mapped_writes::write(int fd, const char* from, std::uint64_t bytes, std::uint64_t offset) noexcept {
  const bool done = try_write(fd, from, bytes, offset);
  // Relaxed: a hint. Stored only when it changes, as all writers share its line.
  if (is_used_.load(std::memory_order_relaxed) != done) is_used_.store(done, std::memory_order_relaxed);
  return done;
}

bool mapped_writes::try_write(int fd, const char* from, std::uint64_t bytes, std::uint64_t offset) noexcept {
  const std::uint64_t number = offset / part_bytes, in_part = offset % part_bytes;
  if (bytes < bytes_min || bytes > bytes_max || number >= parts_max || in_part + bytes > part_bytes) return false;
  struct stat s;
  if (fstat(fd, &s) != 0 || offset + bytes > static_cast<std::uint64_t>(s.st_size)) return false;
  char* const data = part(fd, number);
  if (data == nullptr || !guard_copies()) return false;
  const std::uint64_t first = in_part / page_bytes() * page_bytes(), reach = in_part + bytes - first;
  if (!makes_pages_ && !are_there(data + first, reach)) return false;
  // No room, a file that has become shorter, an old kernel: pwrite tells them apart.
  if (madvise(data + first, reach, MADV_POPULATE_WRITE) != 0) return false;
  GPUFS_SCHEDULE_POINT("mapped_writes.copy");
  return copy_guarded(data + in_part, from, bytes - tail_bytes, guarded::destination);
}

char* mapped_writes::part(int fd, std::uint64_t number) noexcept {
  // Acquire: pairs with the release below.
  char* known = parts_[number].load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* const data =
      mmap(nullptr, part_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(number * part_bytes));
  if (data == MAP_FAILED) return nullptr;
  if (parts_[number].compare_exchange_strong(known, static_cast<char*>(data), std::memory_order_acq_rel))
    return static_cast<char*>(data);
  (void)munmap(data, part_bytes);  // another thread was faster
  return known;
}

}  // namespace gpufs

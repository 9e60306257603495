// The POSIX backend: files of the host through open, pread and mmap (mapped_reads.hpp).
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/mapped_reads.hpp"
#include "gpufs/backend.hpp"

namespace gpufs {
namespace {

std::int64_t nanoseconds(const statx_timestamp& t) {
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class posix_mapping final : public file_mapping {
 public:
  posix_mapping(char* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  ~posix_mapping() override { munmap(data_, bytes_); }
  posix_mapping(const posix_mapping&) = delete;
  posix_mapping& operator=(const posix_mapping&) = delete;
  char* data() const override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  char* data_;
  std::uint64_t bytes_;
};

class posix_file final : public backend_file {
 public:
  posix_file(int fd, const posix_backend_options& options)
      : fd_(fd), unmapped_reads_(options.mapped_reads ? 0 : unmapped_reads_max) {}
  // An error of close on a descriptor that was only read loses nothing; there is nobody to tell either.
  ~posix_file() override {
    delete mapped_.load(std::memory_order_acquire);
    (void)::close(fd_);
  }
  posix_file(const posix_file&) = delete;
  posix_file& operator=(const posix_file&) = delete;

  int identify(file_identity& identity) override {
    struct statx s;
    if (statx(fd_, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &s) != 0) return -errno;
    identity.device = makedev(s.stx_dev_major, s.stx_dev_minor);
    identity.inode = s.stx_ino;
    identity.size = s.stx_size;
    identity.modified_ns = nanoseconds(s.stx_mtime);
    identity.changed_ns = nanoseconds(s.stx_ctime);
    identity.born_ns = (s.stx_mask & STATX_BTIME) != 0 ? nanoseconds(s.stx_btime) : 0;
    identity.mode = s.stx_mode;
    return 0;
  }

  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    // Acquire: pairs with the release of whoever mapped the file.
    if (mapped_reads* mapped = mapped_.load(std::memory_order_acquire); mapped != nullptr) {
      if (mapped->read(to, bytes, offset)) return static_cast<std::int64_t>(bytes);
    } else if (unmapped_reads_.load(std::memory_order_relaxed) < unmapped_reads_max &&
               unmapped_reads_.fetch_add(1, std::memory_order_relaxed) == unmapped_reads_max - 1) {
      // One thread is the last to count, and tries once.
      mapped_.store(mapped_reads::make(fd_).release(), std::memory_order_release);
    }
    const ssize_t n = pread(fd_, to, bytes, static_cast<off_t>(offset));
    return n < 0 ? -errno : n;
  }

  void expect(std::uint64_t bytes, std::uint64_t offset) override {
    if (const mapped_reads* mapped = mapped_.load(std::memory_order_acquire)) mapped->expect(bytes, offset);
  }

  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    void* p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(offset));
    if (p == MAP_FAILED) return nullptr;
    return std::make_unique<posix_mapping>(static_cast<char*>(p), bytes);
  }

  double cached(const file_mapping& mapping, std::uint64_t offset) override {
    // Pages that are still being read count too: whoever faults the mapping in then waits for them.
    if (const double share = share_in_cache(offset, mapping.bytes()); share >= 0) return share;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> resident((mapping.bytes() + page - 1) / page);
    if (mincore(mapping.data(), mapping.bytes(), resident.data()) != 0) return 0;
    std::uint64_t n = 0;
    for (const unsigned char r : resident) n += r & 1u;
    return static_cast<double>(n) / static_cast<double>(resident.size());
  }

  void fault_in(const file_mapping& mapping) override {
#if defined(MADV_POPULATE_READ)
    // Linux 5.14. The driver would otherwise take each page's fault by itself, which costs more than the rest of a
    // registration.
    (void)madvise(mapping.data(), mapping.bytes(), MADV_POPULATE_READ);
#endif
  }

  void read_ahead(std::uint64_t offset, std::uint64_t bytes) override {
    // Only advice: when it is not taken, the extent is not registered and loads stay staged.
    (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
  }

 private:
  // By cachestat(2), Linux 6.5; -1 where there is none.
  double share_in_cache(std::uint64_t offset, std::uint64_t bytes) const {
    // As in the kernel's uapi header, which C libraries do not have yet.
    struct range {
      std::uint64_t offset, length;
    } const asked{offset, bytes};
    struct {
      std::uint64_t cached, dirty, written_back, evicted, recently_evicted;
    } pages{};
    constexpr long cachestat = 451;
    if (syscall(cachestat, fd_, &asked, &pages, 0) != 0) return -1;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return std::min(1.0, static_cast<double>(pages.cached) / static_cast<double>((bytes + page - 1) / page));
  }

  static constexpr std::uint32_t unmapped_reads_max = 64;  // a mapping costs a few of them

  const int fd_;
  std::atomic<std::uint32_t> unmapped_reads_;  // counted up to the limit, at which the file is mapped if it can be
  std::atomic<mapped_reads*> mapped_{nullptr};
};

class posix_backend final : public backend {
 public:
  explicit posix_backend(const posix_backend_options& options) : options_(options) {}

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override {
    // O_NONBLOCK: opening a FIFO must not wait for its writer; it means nothing for regular files.
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (no_follow ? O_NOFOLLOW : 0);
    int fd = -1;
    do {
      fd = ::open(path.c_str(), flags);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return -errno;
    file = std::make_unique<posix_file>(fd, options_);
    return 0;
  }

 private:
  const posix_backend_options options_;
};

}  // namespace

std::shared_ptr<backend> make_posix_backend(const posix_backend_options& options) {
  return std::make_shared<posix_backend>(options);
}

}  // namespace gpufs

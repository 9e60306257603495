// The POSIX backend: host files through open, pread and mmap (mapped_reads.hpp, mapped_writes.hpp).
//
// Any thread may call it. It has no mutex of its own; its state is atomic or is set before it is
// shared, and path_opener and descriptor_table are thread-safe.
//
// A file that an opener opened stays open in that opener's descriptor table (descriptor_table.hpp)
// until the file is destroyed. The first thread of the process's table that needs the file opens it
// there too, for all later uses. A small file that its opener reads at the open is in one table
// only.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "backend/closing_thread.hpp"
#include "backend/counted_mapping.hpp"
#include "backend/descriptor_table.hpp"
#include "backend/mapped_reads.hpp"
#include "backend/mapped_writes.hpp"
#include "backend/path_opener.hpp"
#include "backend/posix_backend.hpp"
#include "gpufs/backend.hpp"

namespace gpufs {
namespace {

// Converts a file time. Times that 64 bits of nanoseconds cannot hold become the nearest number.
// The lower limit is half the range, so that the difference of two times does not overflow.
std::int64_t nanoseconds(const statx_timestamp& t) {
  constexpr std::int64_t second = 1'000'000'000, last = std::numeric_limits<std::int64_t>::max();
  if (t.tv_sec >= last / second) return last;
  if (t.tv_sec <= -(last / 2 / second)) return -(last / 2);
  return static_cast<std::int64_t>(t.tv_sec) * second + t.tv_nsec;
}

class posix_mapping final : public file_mapping {
 public:
  posix_mapping(char* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  ~posix_mapping() override { extent_mapping::end(data_, bytes_); }
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
  // `fd`: a descriptor of the calling thread's table. `closes`: for a file to be changed.
  // `unreported`: the error of a close of this file, which the next report returns.
  posix_file(int fd, const posix_backend_options& options, bool readable,
             std::shared_ptr<closing_thread> closes, int unreported)
      : readable_(readable), unreported_(unreported), closes_(std::move(closes)),
        home_(descriptor_table::shared_of_this_thread()), home_fd_(home_ != nullptr ? fd : -1),
        unmapped_reads_(options.mapped_reads ? 0 : unmapped_reads_max),
        maps_writes_(options.mapped_writes && readable), fd_(home_ != nullptr ? -1 : fd) {}
  ~posix_file() override {
    delete mapped_.load(std::memory_order_acquire);
    delete mapped_to_write_.load(std::memory_order_acquire);
    if (home_ != nullptr) home_->close(home_fd_, listener_);
    // Acquire: pairs with the release of the thread that opened it, in in_process_table().
    if (const int fd = fd_.load(std::memory_order_acquire); fd >= 0)
      descriptor_table::of_process().close(fd, listener_);
  }
  posix_file(const posix_file&) = delete;
  posix_file& operator=(const posix_file&) = delete;

  int prepare() override { return descriptor(*this).number(); }

  int identify(file_identity& identity) override {
    const descriptor fd(*this);
    if (!fd) return fd.number();
    struct statx s;
    if (statx(fd.number(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &s) != 0)
      return -errno;
    identity.device = makedev(s.stx_dev_major, s.stx_dev_minor);
    identity.inode = s.stx_ino;
    identity.size = s.stx_size;
    identity.modified_ns = nanoseconds(s.stx_mtime);
    identity.changed_ns = nanoseconds(s.stx_ctime);
    identity.born_ns = (s.stx_mask & STATX_BTIME) != 0 ? nanoseconds(s.stx_btime) : 0;
    identity.mode = s.stx_mode;
    // Relaxed: each user of these got the file from the thread that opened it, which called this
    // first.
    device_.store(identity.device, std::memory_order_relaxed);
    inode_.store(identity.inode, std::memory_order_relaxed);
    return 0;
  }

  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    // Acquire: pairs with the release below, by the thread that mapped the file.
    mapped_reads* const mapped = mapped_.load(std::memory_order_acquire);
    if (mapped != nullptr && mapped->read(to, bytes, offset))
      return static_cast<std::int64_t>(bytes);
    const descriptor fd(*this);
    if (!fd) return fd.number();
    if (!readable_) return -EBADF;
    descriptor_table& table = descriptor_table::of_this_thread();
    // An opener reads a file once, so it does not map it.
    if (mapped == nullptr && !table.is_own() &&
        unmapped_reads_.load(std::memory_order_relaxed) < unmapped_reads_max &&
        unmapped_reads_.fetch_add(1, std::memory_order_relaxed) == unmapped_reads_max - 1) {
      // Only one thread reaches the limit, so only one tries to map the file.
      mapped_.store(mapped_reads::make(fd.number()).release(), std::memory_order_release);
    }
    return table.read(fd.number(), to, bytes, offset);
  }

  void expect(std::uint64_t bytes, std::uint64_t offset) override {
    if (const mapped_reads* mapped = mapped_.load(std::memory_order_acquire))
      mapped->expect(bytes, offset);
  }

  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    const descriptor fd(*this);
    if (!fd) return nullptr;
    char* const data = extent_mapping::make(fd.number(), bytes, offset, PROT_READ);
    if (data == nullptr) return nullptr;
    auto* const made = new (std::nothrow) posix_mapping(data, bytes);
    if (made == nullptr) extent_mapping::end(data, bytes);
    return std::unique_ptr<file_mapping>(made);
  }

  double cached(const file_mapping& mapping, std::uint64_t offset) override {
    // Pages that are still being read count too: fault_in() then waits for them.
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
    // Since Linux 5.14. Without it the driver takes a fault for each page, which costs more than
    // the rest of a registration.
    (void)madvise(mapping.data(), mapping.bytes(), MADV_POPULATE_READ);
#endif
  }

  bool readable() const override { return readable_; }

  // A file that is changed is opened and used only by threads with the process's descriptor table.
  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    const descriptor fd(*this);
    if (!fd) return fd.number();
    std::uint64_t done = 0;
    // A mapping for writing needs a descriptor that can also read.
    if (bytes >= mapped_writes::bytes_min && maps_writes_) {
      mapped_writes* const mapped = map_to_write(fd.number(), offset + bytes);
      if (mapped != nullptr && mapped->write(fd.number(), from, bytes, offset))
        done = bytes - mapped_writes::tail_bytes;
    }
    const ssize_t n =
        pwrite(fd.number(), from + done, bytes - done, static_cast<off_t>(offset + done));
    return n < 0 ? -errno : static_cast<std::int64_t>(done) + n;
  }
  bool writes_together() const override {
    const mapped_writes* const mapped = mapped_to_write_.load(std::memory_order_acquire);
    return mapped != nullptr && mapped->is_used();
  }
  int truncate(std::uint64_t size) override {
    const descriptor fd(*this);
    if (!fd) return fd.number();
    return ftruncate(fd.number(), static_cast<off_t>(size)) == 0 ? 0 : -errno;
  }
  int sync() override {
    const descriptor fd(*this);
    if (!fd) return fd.number();
    return fdatasync(fd.number()) == 0 ? 0 : -errno;
  }
  void tell_closes(std::shared_ptr<close_listener> listener) override {
    if (home_ != nullptr) home_->name_listener(home_fd_, listener);
    listener_ = std::move(listener);
  }
  // The kernel reports to the file system each close of a descriptor, also of a copy.
  int report_close() override {
    if (closes_ == nullptr) return 0;  // the file was not opened to be changed
    // The number of the process's table: a descriptor that was opened for this one call is told of
    // other errors.
    const int fd = fd_.load(std::memory_order_acquire);
    descriptor_table& table = descriptor_table::of_process();
    if (fd < 0 || !table.is_of_this_thread()) return -EAGAIN;
    const int status = table.report_close(fd, *closes_);
    const int before = unreported_.exchange(0, std::memory_order_relaxed);
    return before != 0 ? before : status;
  }

  void read_ahead(std::uint64_t offset, std::uint64_t bytes) override {
    // This is advice. If the kernel does not take it, the extent is not registered, and its loads
    // stay staged.
    const descriptor fd(*this);
    if (!fd) return;
    // In pieces: Linux limits one call to the device's read_ahead_kb, or max_sectors_kb if that is
    // more. The default of read_ahead_kb is 128 KiB.
    constexpr std::uint64_t piece_bytes = std::uint64_t{128} << 10;
    for (std::uint64_t done = 0; done < bytes; done += piece_bytes) {
      (void)posix_fadvise(fd.number(), static_cast<off_t>(offset + done),
                          static_cast<off_t>(std::min(piece_bytes, bytes - done)),
                          POSIX_FADV_WILLNEED);
    }
  }

 private:
  // A descriptor of the calling thread's table while this object lives, or an error. It usually
  // borrows a descriptor that the file keeps. Only an opener that uses another thread's file has
  // none: for it the file is opened for this one use.
  class descriptor {
   public:
    explicit descriptor(posix_file& file)
        : file_(file), table_(descriptor_table::of_this_thread()) {
      if (&table_ == file.home_.get()) number_ = file.home_fd_;
      else if (!table_.is_own()) number_ = file.in_process_table();
      else number_ = file.reopen(), passing_ = number_ >= 0;
    }
    ~descriptor() {
      if (passing_) table_.close(number_, file_.listener_);
    }
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    explicit operator bool() const { return number_ >= 0; }
    int number() const { return number_; }  // or -errno

   private:
    const posix_file& file_;
    descriptor_table& table_;
    int number_ = -1;
    bool passing_ = false;
  };

  // Returns null when the file cannot be mapped for a write that ends at `end`. The next large
  // write then tries again, which costs a system call or two.
  mapped_writes* map_to_write(int fd, std::uint64_t end) {
    // Acquire: pairs with the exchange below, by the thread that mapped the file.
    mapped_writes* known = mapped_to_write_.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    std::unique_ptr<mapped_writes> made = mapped_writes::make(fd, end);
    if (made == nullptr ||
        !mapped_to_write_.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel))
      return known;
    return made.release();
  }

  int in_process_table() {
    // Acquire: pairs with the exchange below. Without it the number might be used before it is
    // open.
    int known = fd_.load(std::memory_order_acquire);
    if (known >= 0) return known;
    const int fresh = reopen();
    if (fresh < 0) return fresh;
    if (fd_.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return fresh;
    descriptor_table::of_process().close(fresh, listener_);  // another thread was faster
    return known;
  }

  // Opens the file in the calling thread's table, through a table where it stays open. Returns a
  // descriptor, or -errno.
  int reopen() {
    const int kept = descriptor_table::of_this_thread().take_kept(
        {device_.load(std::memory_order_relaxed), inode_.load(std::memory_order_relaxed),
         O_RDONLY});
    if (kept >= 0) return kept;
    const int fd = home_ != nullptr
                       ? home_->reopen(home_fd_)
                       : descriptor_table::of_process().reopen(fd_.load(std::memory_order_acquire));
    if (fd < 0) return fd;
    // The link is found by numbers, and reading a wrong file would go unnoticed. So check that it
    // is the same file.
    struct statx s;
    const int known = statx(fd, "", AT_EMPTY_PATH, STATX_INO, &s) == 0 ? 0 : -errno;
    if (known == 0 && s.stx_ino == inode_.load(std::memory_order_relaxed) &&
        makedev(s.stx_dev_major, s.stx_dev_minor) == device_.load(std::memory_order_relaxed))
      return fd;
    descriptor_table::of_this_thread().close(fd, listener_);
    return known < 0 ? known : -ESTALE;
  }

  // The cached share by cachestat(2), since Linux 6.5. -1 where the call fails.
  double share_in_cache(std::uint64_t offset, std::uint64_t bytes) {
    // As in the kernel's uapi header, which C libraries do not have yet.
    struct range {
      std::uint64_t offset, length;
    } const asked{offset, bytes};
    struct {
      std::uint64_t cached, dirty, written_back, evicted, recently_evicted;
    } pages{};
    constexpr long cachestat = 451;
    const descriptor fd(*this);
    if (!fd || syscall(cachestat, fd.number(), &asked, &pages, 0) != 0) return -1;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return std::min(
        1.0, static_cast<double>(pages.cached) / static_cast<double>((bytes + page - 1) / page));
  }

  static constexpr std::uint32_t unmapped_reads_max = 64;  // a mapping costs a few of them

  const bool readable_;
  std::atomic<int> unreported_;               // relaxed: it orders no other memory
  std::shared_ptr<close_listener> listener_;  // set before the file is shared
  const std::shared_ptr<closing_thread> closes_;
  // The table of the opener that opened the file. Null: the process's table.
  const std::shared_ptr<descriptor_table> home_;
  const int home_fd_;  // in home_
  // Counts up to the limit; then the file is mapped if possible.
  std::atomic<std::uint32_t> unmapped_reads_;
  const bool maps_writes_;
  std::atomic<int> fd_;  // in the process's table; -1: not open there yet
  std::atomic<std::uint64_t> device_{0}, inode_{0};  // as of the last identify()
  std::atomic<mapped_reads*> mapped_{nullptr};
  std::atomic<mapped_writes*> mapped_to_write_{nullptr};
};

class posix_backend final : public backend {
 public:
  posix_backend(const posix_backend_options& options, std::string proc)
      : options_(options), proc_(std::move(proc)), paths_(options.root, proc_) {}

  int open(const std::string& path, bool no_follow, std::unique_ptr<backend_file>& file) override {
    return open_to_change(path, {.no_follow = no_follow, .write = false}, file);
  }

  int open_to_change(const std::string& path, const open_how& how,
                     std::unique_ptr<backend_file>& file) override {
    if (options_.read_only && (how.write || how.create)) return -EROFS;
    bool readable = true;
    int fd = paths_.open(path, how, readable);
    if (fd < 0) return fd;
    int reported = 0;
    if (how.write) fd = descriptor_table::of_this_thread().move_from_copied(fd, reported);
    try {
      file = std::make_unique<posix_file>(fd, options_, readable, closes_, reported);
    } catch (...) {
      descriptor_table::of_this_thread().close(fd);
      throw;
    }
    return 0;
  }

  int unlink(const std::string& path) override { return paths_.unlink(path); }
  int rename(const std::string& path, const std::string& new_path) override {
    return paths_.rename(path, new_path);
  }

  int sync_folder(const std::string& path) override { return paths_.sync_folder(path); }

  std::unique_ptr<descriptor_table_guard> enter_opener() override {
    if (!options_.own_descriptors || paths_.has_root()) return nullptr;
    std::call_once(tried_, [this] { own_tables_ = descriptor_table::can_be_own(proc_); });
    return own_tables_ ? descriptor_table::make_own(proc_) : nullptr;
  }

  void close_handed() override { descriptor_table::of_this_thread().close_handed(); }
  std::size_t kept_descriptors() const override {
    return descriptor_table::of_process().kept_count();
  }

 private:
  const posix_backend_options options_;
  const std::string proc_;
  const path_opener paths_;
  std::once_flag tried_;
  bool own_tables_ = false;  // set once, inside tried_
  // Null: read-only.
  const std::shared_ptr<closing_thread> closes_ =
      options_.read_only ? nullptr : std::make_shared<closing_thread>();
};

}  // namespace

std::shared_ptr<backend> make_posix_backend(const posix_backend_options& options,
                                            const std::string& proc) {
  return std::make_shared<posix_backend>(options, proc);
}
std::shared_ptr<backend> make_posix_backend(const posix_backend_options& options) {
  return make_posix_backend(options, "/proc");
}

}  // namespace gpufs

#include "service/file_table.hpp"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "gpufs/base/limits.hpp"
#include "service/extents.hpp"

namespace gpufs {
namespace {

std::int64_t wall_clock_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// 0 when the file can be served.
int check_kind(const file_identity& identity) {
  if (S_ISDIR(identity.mode)) return -EISDIR;
  if (!S_ISREG(identity.mode)) return -EINVAL;
  if (identity.size >= limits::file_bytes_max) return -EOVERFLOW;
  return 0;
}

}  // namespace

bool host_file::rest() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || file_ == nullptr || file_.use_count() > 1) return false;
  if (used_) {
    used_ = false;
    return false;
  }
  file_.reset();
  open_.store(false, std::memory_order_relaxed);
  return true;
}

file_table::file_table(std::shared_ptr<backend> io, std::size_t descriptors_max)
    : io_(std::move(io)), descriptors_max_(descriptors_max) {}

int file_table::open_backend(const std::string& path, bool no_follow, std::shared_ptr<backend_file>& file) {
  if (descriptors_->load() >= descriptors_max_) make_room();
  std::unique_ptr<backend_file> opened;
  int status = io_->open(path, no_follow, opened);
  if (status == -EMFILE || status == -ENFILE) {
    make_room();
    status = io_->open(path, no_follow, opened);
  }
  if (status < 0) return status == -ENFILE ? -EMFILE : status;
  descriptors_->fetch_add(1);
  file = std::shared_ptr<backend_file>(opened.release(), [count = descriptors_](backend_file* f) {
    delete f;
    count->fetch_sub(1);
  });
  return 0;
}

int file_table::reach(host_file& file, std::shared_ptr<backend_file>& reached) {
  {
    const std::lock_guard lock(file.mutex_);
    file.used_ = true;
    reached = file.file_;
  }
  if (reached != nullptr) return 0;
  const int status = open_backend(file.path_, file.no_follow_, reached);
  if (status == -ENOENT || status == -ENOTDIR) return -ESTALE;
  if (status < 0) return status;
  file_identity identity;
  if (const int known = reached->identify(identity); known < 0) return known;
  // Another file under this path: what the descriptor stood for cannot be reached any more (as NFS says it).
  const file_identity& expected = file.version_->identity;
  if (identity.device != expected.device || identity.inode != expected.inode || identity.born_ns != expected.born_ns)
    return -ESTALE;
  const std::lock_guard lock(file.mutex_);
  if (file.file_ == nullptr) file.file_ = reached;
  file.open_.store(true, std::memory_order_relaxed);
  return 0;
}

std::int64_t file_table::read(backend_file& file, char* to, std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t done = 0;
  while (done < bytes) {
    const std::int64_t n = file.read(to + done, bytes - done, offset + done);
    if (n == -EINTR) continue;
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<std::uint64_t>(n);
  }
  return static_cast<std::int64_t>(done);
}

int file_table::look_up(std::uint32_t handle, lookups& known, lookups::entry*& found) {
  const std::uint64_t epoch = epoch_.load(std::memory_order_acquire);
  if (known.epoch != epoch) {
    known.clear();
    known.epoch = epoch;
  }
  found = &known.entries[handle % known.entries.size()];
  if (handle != 0 && found->handle == handle) return 0;
  lookups::entry fresh{handle, find(handle), nullptr};
  if (fresh.file == nullptr) return -EBADF;
  const int status = reach(*fresh.file, fresh.reached);
  if (status < 0) return status;
  *found = std::move(fresh);
  return 0;
}

int file_table::open(const std::string& path, bool no_follow, std::uint32_t& handle,
                     std::shared_ptr<host_file>& result) {
  std::shared_ptr<backend_file> file;
  const int status = open_backend(path, no_follow, file);
  if (status < 0) return status;
  // Before the look at the file: a change that comes after it must count as later than this.
  const std::int64_t seen_ns = wall_clock_ns();
  file_identity identity;
  if (const int known = file->identify(identity); known < 0) return known;
  if (const int kind = check_kind(identity); kind < 0) return kind;

  // Made before the table is locked: all workers open and close at the same time.
  result = std::make_shared<host_file>(path, no_follow, version_of(identity, seen_ns), std::move(file));
  const std::unique_lock lock(mutex_);
  std::uint32_t index = 0;
  if (!unused_.empty()) {
    index = unused_.back();
    unused_.pop_back();
  } else {
    if (entries_.size() >= (std::size_t{1} << index_bits) - 1) return -EMFILE;
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  }
  entry& e = entries_[index];
  e.file = result;
  handle = (e.generation << index_bits) | (index + 1);
  return 0;
}

std::shared_ptr<host_file> file_table::find(std::uint32_t handle) const {
  const std::uint32_t index = (handle & ((1u << index_bits) - 1)) - 1;
  const std::shared_lock lock(mutex_);
  if (index >= entries_.size()) return nullptr;
  const entry& e = entries_[index];
  return e.file != nullptr && (e.generation << index_bits) == (handle & ~((1u << index_bits) - 1)) ? e.file : nullptr;
}

int file_table::close(std::uint32_t handle) {
  std::shared_ptr<host_file> last;  // destroyed, and with it the descriptor closed, after the lock is given back
  const std::uint32_t index = (handle & ((1u << index_bits) - 1)) - 1;
  const std::unique_lock lock(mutex_);
  if (index >= entries_.size()) return -EBADF;
  entry& e = entries_[index];
  if (e.file == nullptr || (e.generation << index_bits) != (handle & ~((1u << index_bits) - 1))) return -EBADF;
  last = std::move(e.file);
  e.file = nullptr;
  e.generation = (e.generation + 1) & ((1u << (32 - index_bits)) - 1);
  unused_.push_back(index);
  epoch_.fetch_add(1, std::memory_order_release);
  return 0;
}

std::size_t file_table::open_count() const {
  const std::shared_lock lock(mutex_);
  return entries_.size() - unused_.size();
}

std::shared_ptr<file_version> file_table::version_of(const file_identity& identity, std::int64_t seen_ns) {
  const std::int64_t changed = identity.modified_ns > identity.changed_ns ? identity.modified_ns : identity.changed_ns;
  const bool racy = seen_ns - changed < racy_ns;
  const std::lock_guard lock(versions_mutex_);
  std::shared_ptr<file_version>& known = versions_[{identity.device, identity.inode}];
  if (known != nullptr && !known->racy && known->identity == identity) return known;
  auto fresh = std::make_shared<file_version>();
  fresh->number = ++last_version_;
  fresh->identity = identity;
  fresh->racy = racy;
  fresh->extents = std::make_shared<extent_set>();
  known = fresh;
  if (versions_.size() > versions_max) {
    // Forgotten versions cost only pages that are read again. Those with open files live on in their files.
    versions_.clear();
  }
  return fresh;
}

void file_table::make_room() {
  // Half of what is open at a time, so that a large table is not walked at each open. Files that are not open now do not
  // count: among many they would hide the few that are.
  std::vector<std::shared_ptr<host_file>> seen;
  {
    const std::unique_lock lock(mutex_);
    const std::size_t want = descriptors_max_ / 2 + 16;
    for (std::size_t i = 0; i < entries_.size() && seen.size() < want; ++i) {
      hand_ = hand_ + 1 < entries_.size() ? hand_ + 1 : 0;
      const std::shared_ptr<host_file>& file = entries_[hand_].file;
      if (file != nullptr && file->open_.load(std::memory_order_relaxed)) seen.push_back(file);
    }
  }
  epoch_.fetch_add(1, std::memory_order_release);  // descriptors that workers remember cannot rest
  for (int pass = 0; pass < 2; ++pass) {           // the first pass may only take the marks of use away
    bool closed = false;
    for (const auto& file : seen) closed = file->rest() || closed;
    if (closed) return;
  }
}

}  // namespace gpufs

#include "support/memory_backend.hpp"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <shared_mutex>

#include "gpufs/error.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t device_number = 0x6d656d;
constexpr int links_max = 40;

std::int64_t wall_clock_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class memory_mapping final : public file_mapping {
 public:
  memory_mapping(char* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  ~memory_mapping() override { munmap(data_, bytes_); }
  memory_mapping(const memory_mapping&) = delete;
  memory_mapping& operator=(const memory_mapping&) = delete;
  char* data() const override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  char* data_;
  std::uint64_t bytes_;
};

// The bytes of a file. Thread-safe.
class storage {
 public:
  virtual ~storage() = default;
  virtual std::uint64_t size() const = 0;
  virtual std::size_t read(char* to, std::uint64_t bytes, std::uint64_t offset) const = 0;
  virtual void write(std::string_view content, std::uint64_t offset) = 0;
  virtual void truncate(std::uint64_t size) = 0;
  virtual std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) = 0;
};

// In pieces, so that a file may have holes.
class heap_storage final : public storage {
 public:
  std::uint64_t size() const override {
    const std::shared_lock lock(mutex_);
    return size_;
  }

  std::size_t read(char* to, std::uint64_t bytes, std::uint64_t offset) const override {
    const std::shared_lock lock(mutex_);
    if (offset >= size_) return 0;
    const std::uint64_t end = std::min(size_ - offset, bytes) + offset;
    for (std::uint64_t at = offset; at < end;) {
      const std::uint64_t n = std::min(end, (at / piece_bytes + 1) * piece_bytes) - at;
      const auto found = pieces_.find(at / piece_bytes);
      if (found == pieces_.end()) std::memset(to + (at - offset), 0, n);
      else std::memcpy(to + (at - offset), found->second->data() + at % piece_bytes, n);
      at += n;
    }
    return end - offset;
  }

  void write(std::string_view content, std::uint64_t offset) override {
    const std::unique_lock lock(mutex_);
    for (std::uint64_t done = 0; done < content.size();) {
      const std::uint64_t at = offset + done;
      const std::uint64_t n = std::min(content.size() - done, piece_bytes - at % piece_bytes);
      std::unique_ptr<piece>& p = pieces_[at / piece_bytes];
      if (p == nullptr) p = std::make_unique<piece>();
      std::memcpy(p->data() + at % piece_bytes, content.data() + done, n);
      done += n;
    }
    size_ = std::max(size_, offset + content.size());
  }

  void truncate(std::uint64_t size) override {
    const std::unique_lock lock(mutex_);
    size_ = size;
    pieces_.erase(pieces_.lower_bound((size + piece_bytes - 1) / piece_bytes), pieces_.end());
    const auto last = pieces_.find(size / piece_bytes);
    if (last != pieces_.end())
      std::memset(last->second->data() + size % piece_bytes, 0, piece_bytes - size % piece_bytes);
  }

  std::unique_ptr<file_mapping> map(std::uint64_t, std::uint64_t) override { return nullptr; }

 private:
  static constexpr std::uint64_t piece_bytes = 4096;
  using piece = std::array<char, piece_bytes>;
  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<piece>> pieces_;
  std::uint64_t size_ = 0;
};

class memfd_storage final : public storage {
 public:
  memfd_storage() : fd_(memfd_create("gpufs memory_backend", MFD_CLOEXEC)) {
    check(fd_ >= 0, "memfd_create");
  }
  ~memfd_storage() override { (void)close(fd_); }
  memfd_storage(const memfd_storage&) = delete;
  memfd_storage& operator=(const memfd_storage&) = delete;

  std::uint64_t size() const override {
    struct stat s;
    check(fstat(fd_, &s) == 0, "fstat of a memfd");
    return static_cast<std::uint64_t>(s.st_size);
  }
  std::size_t read(char* to, std::uint64_t bytes, std::uint64_t offset) const override {
    const ssize_t n = pread(fd_, to, bytes, static_cast<off_t>(offset));
    check(n >= 0, "pread of a memfd");
    return static_cast<std::size_t>(n);
  }
  void write(std::string_view content, std::uint64_t offset) override {
    const ssize_t n = pwrite(fd_, content.data(), content.size(), static_cast<off_t>(offset));
    check(n == static_cast<ssize_t>(content.size()), "pwrite to a memfd");
  }
  void truncate(std::uint64_t size) override {
    check(ftruncate(fd_, static_cast<off_t>(size)) == 0, "ftruncate of a memfd");
  }
  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    void* p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(offset));
    if (p == MAP_FAILED) return nullptr;
    return std::make_unique<memory_mapping>(static_cast<char*>(p), bytes);
  }

 private:
  static void check(bool good, const char* what) {
    if (!good) throw error(errno, what);
  }
  int fd_;
};

}  // namespace

struct memory_backend::node {
  file_identity identity;  // except the size, which is that of the content
  std::unique_ptr<storage> bytes;
  std::string target;  // of a symbolic link
};

struct memory_backend::open_counts {
  std::atomic<std::size_t> now{0}, most{0}, total{0};
};

class memory_backend::file final : public backend_file {
 public:
  file(const memory_backend& owner, std::shared_ptr<node> n)
      : owner_(owner), node_(std::move(n)), counts_(owner.counts_) {
    const std::size_t now = ++counts_->now;
    for (std::size_t most = counts_->most;
         now > most && !counts_->most.compare_exchange_weak(most, now);) {
    }
    ++counts_->total;
  }
  ~file() override { --counts_->now; }
  file(const file&) = delete;
  file& operator=(const file&) = delete;

  int identify(file_identity& identity) override {
    const std::lock_guard lock(owner_.mutex_);
    identity = node_->identity;
    identity.size = node_->bytes->size();
    return 0;
  }
  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    if (S_ISDIR(node_->identity.mode)) return -EISDIR;
    if (offset > (~std::uint64_t{0} >> 1)) return -EINVAL;
    return static_cast<std::int64_t>(node_->bytes->read(to, bytes, offset));
  }
  std::unique_ptr<file_mapping> map(std::uint64_t offset, std::uint64_t bytes) override {
    return node_->bytes->map(offset, bytes);
  }
  double cached(const file_mapping&, std::uint64_t) override { return 1; }
  void read_ahead(std::uint64_t, std::uint64_t) override {}
  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    const std::lock_guard lock(owner_.mutex_);
    node_->bytes->write({from, bytes}, offset);
    owner_.changed(*node_);
    return static_cast<std::int64_t>(bytes);
  }
  int truncate(std::uint64_t size) override {
    const std::lock_guard lock(owner_.mutex_);
    node_->bytes->truncate(size);
    owner_.changed(*node_);
    return 0;
  }
  bool writes_together() const override { return owner_.options_.writes_together; }
  int sync() override { return 0; }

 private:
  const memory_backend& owner_;  // outlives its files: a mount holds it longer than its service
  const std::shared_ptr<node> node_;
  const std::shared_ptr<open_counts> counts_;
};

memory_backend::memory_backend(const memory_backend_options& options)
    : options_(options), age_ns_(options.age_ns), counts_(std::make_shared<open_counts>()) {}
memory_backend::~memory_backend() = default;

// ---- with mutex_ locked

std::shared_ptr<memory_backend::node> memory_backend::find(const std::string& path) const {
  std::string at = path;
  for (int links = 0; links < links_max; ++links) {
    const auto found = nodes_.find(at);
    if (found == nodes_.end()) return nullptr;
    if (!S_ISLNK(found->second->identity.mode)) return found->second;
    at = found->second->target;
  }
  return nullptr;
}

std::shared_ptr<memory_backend::node> memory_backend::existing(const std::string& path) const {
  std::shared_ptr<node> n = find(path);
  if (n == nullptr) throw error(ENOENT, "memory_backend", path);
  return n;
}

std::shared_ptr<memory_backend::node> memory_backend::create(std::uint32_t mode) {
  auto n = std::make_shared<node>();
  n->identity.device = device_number;
  n->identity.inode = last_inode_++ % options_.inode_count + 1;
  n->identity.born_ns = static_cast<std::int64_t>(last_inode_);
  n->identity.mode = mode;
  if (options_.mappings && S_ISREG(mode)) n->bytes = std::make_unique<memfd_storage>();
  else n->bytes = std::make_unique<heap_storage>();
  changed(*n);
  return n;
}

void memory_backend::changed(node& n) const {
  if (frozen_ && n.identity.changed_ns != 0) return;
  last_time_ns_ = std::max(last_time_ns_ + 1, wall_clock_ns() - age_ns_);
  n.identity.modified_ns = n.identity.changed_ns = last_time_ns_;
}

// ---- for the service

int memory_backend::open(const std::string& path, bool no_follow,
                         std::unique_ptr<backend_file>& opened) {
  const std::lock_guard lock(mutex_);
  const auto refusal = refused_.find(path);
  if (refusal != refused_.end()) return -refusal->second;
  if (no_follow) {
    const auto itself = nodes_.find(path);
    if (itself != nodes_.end() && S_ISLNK(itself->second->identity.mode)) return -ELOOP;
  }
  std::shared_ptr<node> n = find(path);
  if (n == nullptr) return -ENOENT;
  opened = std::make_unique<file>(*this, std::move(n));
  return 0;
}

int memory_backend::open_to_change(const std::string& path, const open_how& how,
                                   std::unique_ptr<backend_file>& opened) {
  const std::lock_guard lock(mutex_);
  const auto refusal = refused_.find(path);
  if (refusal != refused_.end()) return -refusal->second;
  if (how.no_follow || how.exclusive) {
    const auto itself = nodes_.find(path);
    if (itself != nodes_.end() && how.create && how.exclusive) return -EEXIST;
    if (itself != nodes_.end() && S_ISLNK(itself->second->identity.mode)) return -ELOOP;
  }
  std::shared_ptr<node> n = find(path);
  if (n == nullptr && !how.create) return -ENOENT;
  if (n == nullptr) n = nodes_[path] = create(S_IFREG | (how.mode & 0777));
  if (S_ISDIR(n->identity.mode) && how.write) return -EISDIR;
  opened = std::make_unique<file>(*this, std::move(n));
  return 0;
}

int memory_backend::unlink(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(path);
  if (found == nodes_.end()) return -ENOENT;
  if (S_ISDIR(found->second->identity.mode)) return -EISDIR;
  nodes_.erase(found);
  return 0;
}

int memory_backend::rename(const std::string& path, const std::string& new_path) {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(path);
  if (found == nodes_.end()) return -ENOENT;
  const std::shared_ptr<node> n = found->second;
  const auto there = nodes_.find(new_path);
  if (there != nodes_.end() && S_ISDIR(there->second->identity.mode) != S_ISDIR(n->identity.mode))
    return S_ISDIR(n->identity.mode) ? -ENOTDIR : -EISDIR;
  nodes_.erase(found);
  nodes_[new_path] = n;
  return 0;
}

// ---- for tests

void memory_backend::write(const std::string& path, std::string_view content) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<node> n = find(path);
  if (n == nullptr) n = nodes_[path] = create(S_IFREG | 0644);
  n->bytes->truncate(0);
  n->bytes->write(content, 0);
  changed(*n);
}

void memory_backend::write_at(const std::string& path, std::uint64_t offset,
                              std::string_view content) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<node> n = find(path);
  if (n == nullptr) n = nodes_[path] = create(S_IFREG | 0644);
  n->bytes->write(content, offset);
  changed(*n);
}

void memory_backend::truncate(const std::string& path, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<node> n = existing(path);
  n->bytes->truncate(size);
  changed(*n);
}

void memory_backend::replace(const std::string& path, std::string_view content) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<node> n = create(S_IFREG | 0644);
  n->bytes->write(content, 0);
  nodes_[path] = n;
}

void memory_backend::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (nodes_.erase(path) == 0) throw error(ENOENT, "memory_backend", path);
}

void memory_backend::make_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  nodes_[path] = create(S_IFDIR | 0755);
}

void memory_backend::make_fifo(const std::string& path) {
  const std::lock_guard lock(mutex_);
  nodes_[path] = create(S_IFIFO | 0644);
}

void memory_backend::make_link(const std::string& path, const std::string& target) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<node> n = create(S_IFLNK | 0777);
  n->target = target;
  nodes_[path] = n;
}

void memory_backend::refuse(const std::string& path, int error_number) {
  const std::lock_guard lock(mutex_);
  if (error_number == 0) refused_.erase(path);
  else refused_[path] = error_number;
}

void memory_backend::touch(const std::string& path) {
  const std::lock_guard lock(mutex_);
  changed(*existing(path));
}

void memory_backend::freeze_times(bool frozen) {
  const std::lock_guard lock(mutex_);
  frozen_ = frozen;
}

void memory_backend::set_age_ns(std::int64_t age_ns) {
  const std::lock_guard lock(mutex_);
  age_ns_ = age_ns;
}

std::string memory_backend::content(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<node> n = existing(path);
  std::string bytes(n->bytes->size(), '\0');
  bytes.resize(n->bytes->read(bytes.data(), bytes.size(), 0));
  return bytes;
}

bool memory_backend::exists(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return find(path) != nullptr;
}

std::size_t memory_backend::open_now() const { return counts_->now; }
std::size_t memory_backend::open_most() const { return counts_->most; }
std::size_t memory_backend::open_total() const { return counts_->total; }

}  // namespace gpufs::testing

#include "support/durable_backend.hpp"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t device_number = 0x64757261;
constexpr std::int64_t second_ns = 1'000'000'000;

std::int64_t an_hour_ago_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (std::int64_t{t.tv_sec} - 3600) * second_ns + t.tv_nsec;
}

// What is on the disk, and what may be there: the later values, in order. While it is dirty, the
// last one is what the host has.
template <class T>
struct uncertain {
  T durable{};
  T now{};
  bool dirty = false;
  bool cut = false;  // by a truncation: the file system keeps it, even if a sync fails
  std::vector<T> since{};

  void change(const T& value) {
    now = value;
    dirty = true;
    if (since.empty() || since.back() != value) since.push_back(value);
  }
  std::vector<T> possible() const {
    std::vector<T> all{durable};
    for (const T& value : since) {
      if (std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
    }
    if (dirty && std::find(all.begin(), all.end(), now) == all.end()) all.push_back(now);
    return all;
  }
};

// A value on its way to the disk.
template <class T>
struct in_flight {
  std::size_t place;  // of the uncertain value
  T value;
  std::size_t known;  // values of `since` that are not newer
};

template <class T>
in_flight<T> send(uncertain<T>& u, std::size_t place) {
  u.dirty = false;
  return {place, u.now, u.since.size()};
}
template <class T>
void arrive(uncertain<T>& u, const in_flight<T>& sent) {
  u.durable = sent.value;
  u.since.erase(u.since.begin(), u.since.begin() + static_cast<std::ptrdiff_t>(sent.known));
}
// The disk may now have any of its possible values. Nothing writes the value any more.
template <class T, class Random>
void get_lost(uncertain<T>& u, const in_flight<T>& sent, Random& random) {
  if (u.cut) {
    u.dirty = true;
    return;
  }
  const std::size_t one = random() % (sent.known + 1);
  if (one != 0) u.durable = u.since[one - 1];
  u.since.erase(u.since.begin(), u.since.begin() + static_cast<std::ptrdiff_t>(sent.known));
}

}  // namespace

struct durable_backend::node {
  file_identity identity;  // except the size
  uncertain<std::uint64_t> size;
  std::vector<uncertain<sector>> sectors;
  bool is_being_cleaned = false;
  std::uint64_t errors = 0;     // of writes to the disk
  bool last_error_seen = true;  // by any open file

  uncertain<sector>& at(std::uint64_t number) {
    if (number >= sectors.size()) sectors.resize(number + 1);
    return sectors[number];
  }
};

class durable_backend::file final : public backend_file {
 public:
  file(durable_backend& owner, std::shared_ptr<node> n, bool writes)
      : owner_(owner), node_(std::move(n)), writes_(writes),
        errors_seen_(node_->errors - (node_->last_error_seen ? 0 : 1)) {}

  int identify(file_identity& identity) override {
    const std::lock_guard lock(owner_.mutex_);
    identity = node_->identity;
    identity.size = node_->size.now;
    return 0;
  }
  std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t offset) override {
    const std::lock_guard lock(owner_.mutex_);
    const std::uint64_t size = node_->size.now;
    if (offset >= size) return 0;
    const std::uint64_t end = std::min(size - offset, bytes) + offset;
    for (std::uint64_t at = offset; at < end;) {
      const std::uint64_t n = std::min(end, (at / sector_bytes + 1) * sector_bytes) - at;
      std::memcpy(to + (at - offset), node_->at(at / sector_bytes).now.data() + at % sector_bytes,
                  n);
      at += n;
    }
    return static_cast<std::int64_t>(end - offset);
  }
  std::unique_ptr<file_mapping> map(std::uint64_t, std::uint64_t) override { return nullptr; }
  double cached(const file_mapping&, std::uint64_t) override { return 1; }
  void read_ahead(std::uint64_t, std::uint64_t) override {}

  std::int64_t write(const char* from, std::uint64_t bytes, std::uint64_t offset) override {
    if (!writes_) return -EBADF;
    const std::lock_guard lock(owner_.mutex_);
    owner_.store(*node_, offset, {from, bytes});
    return static_cast<std::int64_t>(bytes);
  }
  int truncate(std::uint64_t size) override {
    if (!writes_) return -EINVAL;
    const std::lock_guard lock(owner_.mutex_);
    owner_.resize(*node_, size);
    return 0;
  }
  int sync() override {
    const int status = owner_.sync(node_, errors_seen_);
    schedule_point("durable.synced");
    return status;
  }

 private:
  durable_backend& owner_;  // outlives its files: a mount holds it longer than its service
  const std::shared_ptr<node> node_;
  const bool writes_;
  std::uint64_t errors_seen_;  // guarded by the backend's mutex
};

durable_backend::durable_backend(std::uint64_t seed) : random_(seed) {}
durable_backend::~durable_backend() = default;

// ---- with mutex_ locked

std::shared_ptr<durable_backend::node> durable_backend::find(const std::string& path) const {
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : found->second;
}

std::string durable_backend::folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::shared_ptr<durable_backend::node> durable_backend::add(const std::string& path) {
  auto n = std::make_shared<node>();
  n->identity.device = device_number;
  n->identity.inode = ++last_inode_;
  n->identity.mode = S_IFREG | 0644;
  changed(*n);
  nodes_[last_inode_] = n;
  names_[path] = n;
  note_entries(folder_of(path));
  return n;
}

// Records a change of the folder.
void durable_backend::note_entries(const std::string& folder) {
  folder_entries now;
  for (const auto& [path, n] : names_) {
    if (folder_of(path) == folder) now[path] = n->identity.inode;
  }
  folders_[folder].push_back(std::move(now));
}

void durable_backend::changed(node& n) {
  last_time_ns_ = std::max(last_time_ns_ + 1, an_hour_ago_ns());
  n.identity.modified_ns = n.identity.changed_ns = last_time_ns_;
}

// A possible point of power loss.
void durable_backend::was_changed(const node* n) {
  if (!watcher_) return;
  disk all;
  if (n != nullptr) {
    all.files.push_back(possible(*n));
  } else {
    for (const auto& [number, one] : nodes_) all.files.push_back(possible(*one));
  }
  all.folders = folders_;
  watcher_(all);
}

durable_backend::file_on_disk durable_backend::possible(const node& n) const {
  file_on_disk f{n.identity.inode, n.size.possible(), {}};
  for (const uncertain<sector>& s : n.sectors) f.sectors.push_back(s.possible());
  return f;
}

bool durable_backend::strikes(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

void durable_backend::store(node& n, std::uint64_t at, std::string_view bytes) {
  if (at > n.size.now) zero_tail(n);
  for (std::uint64_t done = 0; done < bytes.size();) {
    const std::uint64_t within = (at + done) % sector_bytes;
    const std::uint64_t part = std::min(bytes.size() - done, sector_bytes - within);
    uncertain<sector>& s = n.at((at + done) / sector_bytes);
    sector changed_to = s.now;
    std::memcpy(changed_to.data() + within, bytes.data() + done, part);
    s.change(changed_to);
    s.cut = false;
    done += part;
  }
  if (at + bytes.size() > n.size.now) n.size.change(at + bytes.size());
  changed(n);
  was_changed(&n);
  if (hosts_writes_fail_ > 0 && !n.is_being_cleaned && strikes(0.1))
    clean(n, strikes(hosts_writes_fail_));
}

// The file grows: the bytes past its end, in its last sector, must be zero.
void durable_backend::zero_tail(node& n) {
  const std::uint64_t keep = n.size.now % sector_bytes;
  if (keep == 0) return;
  uncertain<sector>& s = n.at(n.size.now / sector_bytes);
  sector cut = s.now;
  std::memset(cut.data() + keep, 0, sector_bytes - keep);
  s.change(cut);
}

void durable_backend::resize(node& n, std::uint64_t size) {
  if (size > n.size.now) zero_tail(n);
  for (std::uint64_t i = size / sector_bytes; i < n.sectors.size(); ++i) {
    sector cut = n.sectors[i].now;
    const std::uint64_t keep = i == size / sector_bytes ? size % sector_bytes : 0;
    std::memset(cut.data() + keep, 0, sector_bytes - keep);
    if (cut != n.sectors[i].now) n.sectors[i].change(cut);
    n.sectors[i].cut = n.sectors[i].cut || keep == 0;
  }
  n.size.change(size);
  changed(n);
  was_changed(&n);
}

// Everything dirty goes to the disk at once.
void durable_backend::clean(node& n, bool fails) {
  for (std::size_t i = 0; i < n.sectors.size(); ++i) {
    uncertain<sector>& s = n.sectors[i];
    if (!s.dirty) continue;
    const auto sent = send(s, i);
    if (fails) get_lost(s, sent, random_);
    else arrive(s, sent);
  }
  if (!fails) arrive(n.size, send(n.size, 0));
  if (!fails) return;
  ++n.errors;
  n.last_error_seen = false;
}

// Like fdatasync(2): everything dirty now goes to the disk, while other threads may write the file.
int durable_backend::sync(const std::shared_ptr<node>& n, std::uint64_t& errors_seen) {
  std::unique_lock lock(mutex_);
  cleaned_.wait(lock, [&] { return !n->is_being_cleaned; });
  n->is_being_cleaned = true;
  std::vector<in_flight<sector>> sectors;
  for (std::size_t i = 0; i < n->sectors.size(); ++i) {
    if (n->sectors[i].dirty) sectors.push_back(send(n->sectors[i], i));
  }
  const in_flight<std::uint64_t> size = send(n->size, 0);
  const bool fails = std::exchange(next_sync_fails_, false) || strikes(syncs_fail_);
  lock.unlock();
  schedule_point("durable.sync");
  lock.lock();

  for (const in_flight<sector>& sent : sectors) {
    uncertain<sector>& s = n->sectors[sent.place];
    if (!fails) {
      arrive(s, sent);
      continue;
    }
    get_lost(s, sent, random_);
    if (!s.dirty && strikes(0.5)) s.now = s.durable;
  }
  if (fails) {
    n->size.dirty = true;
    ++n->errors;
    n->last_error_seen = false;
  } else {
    arrive(n->size, size);
  }
  n->is_being_cleaned = false;
  cleaned_.notify_all();
  was_changed(n.get());
  lock.unlock();
  schedule_point("durable.cleaned");
  lock.lock();
  if (errors_seen == n->errors) return 0;
  errors_seen = n->errors;
  n->last_error_seen = true;
  ++failed_syncs_;
  return -EIO;
}

// ---- for the service

int durable_backend::open(const std::string& path, bool, std::unique_ptr<backend_file>& opened) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<node> n = find(path);
  if (n == nullptr) return -ENOENT;
  opened = std::make_unique<file>(*this, std::move(n), false);
  return 0;
}

int durable_backend::open_to_change(const std::string& path, const open_how& how,
                                    std::unique_ptr<backend_file>& opened) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<node> n = find(path);
  if (n != nullptr && how.create && how.exclusive) return -EEXIST;
  if (n == nullptr && !how.create) return -ENOENT;
  if (n == nullptr && !folders_.contains(folder_of(path))) return -ENOENT;
  if (n == nullptr) {
    n = add(path);
    was_changed(nullptr);
  }
  opened = std::make_unique<file>(*this, std::move(n), how.write);
  return 0;
}

int durable_backend::unlink(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (names_.erase(path) == 0) return -ENOENT;
  note_entries(folder_of(path));
  was_changed(nullptr);
  return 0;
}

int durable_backend::rename(const std::string& path, const std::string& new_path) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<node> n = find(path);
  if (n == nullptr || !folders_.contains(folder_of(new_path))) return -ENOENT;
  if (path == new_path) return 0;
  names_.erase(path);
  names_[new_path] = n;
  note_entries(folder_of(path));
  if (folder_of(new_path) != folder_of(path)) note_entries(folder_of(new_path));
  was_changed(nullptr);
  return 0;
}

int durable_backend::sync_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = folders_.find(path);
  if (found == folders_.end()) return -ENOENT;
  found->second.erase(found->second.begin(), found->second.end() - 1);
  was_changed(nullptr);
  return 0;
}

// ---- for tests

void durable_backend::create(const std::string& path, std::string_view content) {
  const std::lock_guard lock(mutex_);
  folders_.try_emplace(folder_of(path));
  const std::shared_ptr<node> n = add(path);
  store(*n, 0, content);
  clean(*n, false);
  auto& states = folders_[folder_of(path)];
  states.erase(states.begin(), states.end() - 1);
}

void durable_backend::make_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (folders_.try_emplace(path).second) note_entries(path);
}

std::string durable_backend::content(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto& n = names_.at(path);
  std::string bytes;
  for (const uncertain<sector>& s : n->sectors) bytes.append(s.now.data(), sector_bytes);
  bytes.resize(n->size.now, '\0');
  return bytes;
}

bool durable_backend::exists(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return names_.contains(path);
}

std::uint64_t durable_backend::inode(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return names_.at(path)->identity.inode;
}

durable_backend::disk durable_backend::possible_disk() const {
  const std::lock_guard lock(mutex_);
  disk all;
  for (const auto& [number, n] : nodes_) all.files.push_back(possible(*n));
  all.folders = folders_;
  return all;
}

durable_backend::file_on_disk durable_backend::possible_file(std::uint64_t inode) const {
  const std::lock_guard lock(mutex_);
  return possible(*nodes_.at(inode));
}

void durable_backend::watch(watcher call) {
  const std::lock_guard lock(mutex_);
  watcher_ = std::move(call);
}

void durable_backend::fail_next_sync() {
  const std::lock_guard lock(mutex_);
  next_sync_fails_ = true;
}

void durable_backend::fail_at_random(double syncs, double writes_of_the_host) {
  const std::lock_guard lock(mutex_);
  syncs_fail_ = syncs;
  hosts_writes_fail_ = writes_of_the_host;
}

std::uint64_t durable_backend::failed_syncs() const {
  const std::lock_guard lock(mutex_);
  return failed_syncs_;
}

}  // namespace gpufs::testing

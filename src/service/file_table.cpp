#include "service/file_table.hpp"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <random>
#include <thread>

#include "base/uninterrupted.hpp"
#include "gpufs/base/limits.hpp"
#include "gpufs/base/platform.cuh"

namespace gpufs {
namespace {

// How many writers of one node may be closed, one after another, before one is reached.
constexpr int writers_tried = 64;

std::int64_t wall_clock_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// 0 when the service can serve such a file, or -errno.
int check_kind(const file_identity& identity) {
  if (S_ISDIR(identity.mode)) return -EISDIR;
  if (!S_ISREG(identity.mode)) return -EINVAL;
  if (identity.size >= limits::file_bytes_max) return -EOVERFLOW;
  return 0;
}

}  // namespace

std::shared_ptr<backend_file> host_file::take_idle() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (writes_ || !lock.owns_lock() || file_ == nullptr || file_.use_count() > 1) return nullptr;
  if (used_) {
    used_ = false;
    return nullptr;
  }
  open_.store(false, std::memory_order_relaxed);
  return std::move(file_);
}

void host_file::close_backend_file() {
  std::shared_ptr<backend_file> last;  // destroyed after the mutex is released
  const std::lock_guard lock(mutex_);
  last.swap(file_);
  open_.store(false, std::memory_order_relaxed);
}

file_table::numbering file_table::numbering::random() {
  std::random_device device;
  const auto bits = [&] { return std::uint64_t{device()} << 32 | device(); };
  numbering numbers;
  numbers.first_generation = bits() & generation_mask;
  numbers.first_version = bits() % (gpufs::versions_end / 2) + 1;  // at least half is left
  return numbers;
}

int file_table::with_room(unsigned first_shard, const std::function<int()>& attempt) {
  int status = attempt();
  for (unsigned again = 1; again < attempts_max && (status == -EMFILE || status == -ENFILE);
       ++again) {
    // First close what other threads left for this one, then what this thread can close itself.
    // Other threads close theirs between requests, so later attempts wait a little.
    io_->close_handed();
    const bool made = make_room(first_shard);
    if (again > 1) {
      if (!made) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    status = attempt();
  }
  return status == -ENFILE ? -EMFILE : status;
}

template <class Open>
int file_table::open_backend(const Open& open, bool writes, unsigned first_shard,
                             std::shared_ptr<backend_file>& file) {
  const std::size_t kept = io_->kept_descriptors();
  if (writes && written_->load() + kept >= written_max()) return -EMFILE;
  if (descriptors_->load() + kept >= descriptors_max_) (void)make_room(first_shard);
  // make_room() cannot close descriptors that the backend keeps. It may even add one: a locked file
  // whose descriptor was to be closed.
  if (io_->kept_descriptors() >= written_max()) return -EMFILE;
  std::unique_ptr<backend_file> opened;
  const int status =
      uninterrupted([&] { return with_room(first_shard, [&] { return open(opened); }); });
  if (status < 0) return status;
  descriptors_->fetch_add(1);
  if (writes) written_->fetch_add(1);
  file = std::shared_ptr<backend_file>(
      opened.release(),
      [count = descriptors_, written = writes ? written_ : nullptr](backend_file* f) {
        delete f;
        count->fetch_sub(1);
        if (written != nullptr) written->fetch_sub(1);
      });
  return 0;
}

int file_table::open_to_read(const std::string& path, bool no_follow, unsigned first_shard,
                             std::shared_ptr<backend_file>& file) {
  return open_backend(
      [&](std::unique_ptr<backend_file>& opened) { return io_->open(path, no_follow, opened); },
      false, first_shard, file);
}

int file_table::reach(host_file& file, std::shared_ptr<backend_file>& reached) {
  GPUFS_SCHEDULE_POINT("file_table.reach");
  {
    const std::lock_guard lock(file.mutex_);
    file.used_ = true;
    reached = file.file_;
  }
  // Only files that are read are opened again. A writer without a descriptor has been closed.
  if (reached == nullptr && file.writes()) return -EBADF;
  // A thread that only reopens a file has no shard of its own.
  const auto anywhere = [this] { return next_room_.fetch_add(1, std::memory_order_relaxed); };
  if (reached != nullptr) {
    const int status = reached->prepare();
    if (status != -EMFILE && status != -ENFILE) return status < 0 ? status : 0;
    return with_room(anywhere(), [&] { return std::min(reached->prepare(), 0); });
  }
  const int status = open_to_read(file.path(), file.no_follow_, anywhere(), reached);
  if (status == -ENOENT || status == -ENOTDIR) return -ESTALE;
  if (status < 0) return status;
  file_identity identity;
  if (const int known = reached->identify(identity); known < 0) return known;
  const file_identity& expected = file.version_->identity;
  const bool is_same = identity.device == expected.device && identity.inode == expected.inode;
  if (file.closes_ != nullptr)
    reached->tell_closes(is_same ? file.closes_
                                 : listen(file.path_, {identity.device, identity.inode}));
  // The path leads to another file. The handle's file cannot be reached any more (ESTALE, as in
  // NFS).
  if (!is_same || identity.born_ns != expected.born_ns) return -ESTALE;
  const std::lock_guard lock(file.mutex_);
  if (file.file_ == nullptr) file.file_ = reached;
  file.open_.store(true, std::memory_order_relaxed);
  return 0;
}

std::int64_t file_table::read(backend_file& file, char* to, std::uint64_t bytes,
                              std::uint64_t offset) {
  std::uint64_t done = 0;
  while (done < bytes) {
    const std::int64_t n =
        uninterrupted([&] { return file.read(to + done, bytes - done, offset + done); });
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<std::uint64_t>(n);
  }
  return static_cast<std::int64_t>(done);
}

std::int64_t file_table::write(backend_file& file, const char* from, std::uint64_t bytes,
                               std::uint64_t offset, const std::uint64_t* mask,
                               const std::function<bool()>& goes_on) {
  const auto is_set = [mask](std::uint64_t i) {
    return mask == nullptr || (mask[i / 64] >> i % 64 & 1) != 0;
  };
  // The end of the bytes from `i` on that are all set, or all unset, in the mask. It skips whole
  // words where it can.
  const auto end_of_equal_bits = [&](std::uint64_t i, bool set) {
    if (mask == nullptr) return bytes;
    while (i < bytes) {
      const std::uint64_t others = (set ? ~mask[i / 64] : mask[i / 64]) >> i % 64;
      if (others != 0)
        return std::min<std::uint64_t>(bytes, i + static_cast<unsigned>(std::countr_zero(others)));
      i = (i / 64 + 1) * 64;
    }
    return bytes;
  };
  std::int64_t written = 0;
  for (std::uint64_t at = 0; at < bytes;) {
    const bool set = is_set(at);
    const std::uint64_t end = end_of_equal_bits(at, set);
    while (set && at < end) {
      if (!goes_on()) return -EIO;
      const std::int64_t n =
          uninterrupted([&] { return file.write(from + at, end - at, offset + at); });
      if (n <= 0) return n < 0 ? n : -EIO;
      at += static_cast<std::uint64_t>(n);
      written += n;
    }
    at = end;
  }
  return written;
}

int file_table::look_up(std::uint64_t handle, lookups& known, lookups::entry*& found) {
  return look_up(known.open, handle, known, found);
}
int file_table::look_up_writer(std::uint64_t name, lookups& known, lookups::entry*& found) {
  return look_up(known.writers, name, known, found);
}

// `among`: the entries of `known` for names of this kind.
int file_table::look_up(lookups::entries& among, std::uint64_t name, lookups& known,
                        lookups::entry*& found) {
  const std::uint64_t epoch = epoch_.load(std::memory_order_acquire);
  if (known.epoch != epoch) {
    known.clear();
    known.epoch = epoch;
  }
  found = &among[lookups::place(name)];
  if (name != 0 && found->name == name) return 0;
  const bool is_writer = &among == &known.writers;
  lookups::entry fresh{name, nullptr, nullptr};
  // A writer may be closed before it is reached. Then another one writes the version, or none.
  int status = 0, left = writers_tried;
  do {
    fresh.file = is_writer ? find_writer(name) : find(name);
    if (fresh.file == nullptr) return -EBADF;
    status = reach(*fresh.file, fresh.reached);
  } while (status == -EBADF && is_writer && --left > 0);
  if (status < 0) return status;
  *found = std::move(fresh);
  return 0;
}

int file_table::open(std::string path, bool no_follow, std::uint64_t& handle,
                     std::shared_ptr<host_file>& result, unsigned shard) {
  auto counted = std::make_shared<const counted_path>(std::move(path), path_bytes_);
  if (!counted->fits(path_bytes_max)) return -ENFILE;
  std::shared_ptr<backend_file> file;
  const int status = open_to_read(counted->text(), no_follow, shard, file);
  if (status < 0) return status;
  return enter(counted, nullptr, no_follow, false, nullptr, std::move(file), handle, result, shard);
}

int file_table::open_to_change(std::string path, const open_how& how, std::uint64_t& handle,
                               std::shared_ptr<host_file>& result,
                               std::atomic<std::uint64_t>* joining) {
  auto counted = std::make_shared<const counted_path>(std::move(path), path_bytes_);
  if (!counted->fits(path_bytes_max)) return -ENFILE;
  std::shared_ptr<backend_file> file;
  const int status = open_backend(
      [&](std::unique_ptr<backend_file>& opened) {
        return io_->open_to_change(counted->text(), how, opened);
      },
      how.write, 0, file);
  if (status < 0) return status;
  return enter(counted, nullptr, how.no_follow, how.write, joining, std::move(file), handle, result,
               0);
}

int file_table::open_again(std::uint64_t& handle, std::shared_ptr<host_file>& file,
                           std::atomic<std::uint64_t>* joining) {
  const std::shared_ptr<host_file> before = file;
  std::shared_ptr<backend_file> reached;
  {
    // Also if the backend throws. A file that writes is asked for its error here, so none of an
    // earlier version comes along.
    struct closing {
      file_table& files;
      const std::uint64_t handle;
      std::atomic<std::uint64_t>* const joining;
      ~closing() {
        (void)files.close(handle);
        if (joining != nullptr) joining->store(0);
      }
    } const closes{*this, handle, joining};
    if (before->writes()) before->mark_untold();
    if (const int status = reach(*before, reached); status < 0) return status;
  }
  return enter(before->path_, before->closes_, before->no_follow_, before->writes(), joining,
               std::move(reached), handle, file, static_cast<unsigned>(shard_of(handle)));
}

// Makes an opened backend file a file of the service. Returns 0 and a handle, or -errno.
int file_table::enter(const std::shared_ptr<const counted_path>& path,
                      std::shared_ptr<close_listener> closes, bool no_follow, bool writes,
                      std::atomic<std::uint64_t>* joining, std::shared_ptr<backend_file> file,
                      std::uint64_t& handle, std::shared_ptr<host_file>& result, unsigned shard) {
  std::optional<key> identified;
  result = nullptr;
  const auto give_up_file = [&] {
    // Both are moved at the same time.
    if (writes && file != nullptr) give_up(path->text(), *file, identified);
  };
  try {
    const int status = try_to_enter(path, closes, no_follow, writes, joining, file, identified,
                                    handle, result, shard);
    if (status < 0) give_up_file();
    return status;
  } catch (...) {
    give_up_file();
    throw;
  }
}

int file_table::try_to_enter(const std::shared_ptr<const counted_path>& path,
                             std::shared_ptr<close_listener>& closes, bool no_follow, bool writes,
                             std::atomic<std::uint64_t>* joining,
                             std::shared_ptr<backend_file>& file, std::optional<key>& identified,
                             std::uint64_t& handle, std::shared_ptr<host_file>& result,
                             unsigned shard) {
  given_version given;
  int status = -EAGAIN;
  for (unsigned i = 0; i < identifications_max && status == -EAGAIN; ++i) {
    // Before identify(): a change after identify() must have a later time than this. And a writer
    // that left before has written nothing since. Sequentially consistent: see leave().
    const std::int64_t seen_ns = wall_clock_ns();
    const std::uint64_t departures = departures_.load();
    file_identity identity;
    if (const int known = file->identify(identity); known < 0) return known;
    identified = key{identity.device, identity.inode};
    if (const int kind = check_kind(identity); kind < 0) return kind;
    if (closes == nullptr && !is_read_only()) {
      closes = listen(path, *identified);
      file->tell_closes(closes);
    }
    GPUFS_SCHEDULE_POINT("files.identified");
    status = version_of(identity, seen_ns, departures, writes, joining, given);
  }
  if (status < 0) return status == -EAGAIN ? -EIO : status;
  const std::shared_ptr<file_version>& version = given.version;
  const std::uint32_t node = given.node;
  const auto leave_node = [&] {
    const bool is_kept = writes && result != nullptr && forget_writer(*result, closing::asks);
    if (node != no_node) (void)leave(*version, given.is_confirmed);
    if (is_kept) (void)ask_closed(*result);
  };
  try {
    host_file_list one(writes ? 1 : 0);
    result =
        std::make_shared<host_file>(path, no_follow, writes, node, given.is_fresh, given.joined,
                                    given.is_confirmed, version, closes, std::move(file));
    // Before the handle exists, because a kernel may close a handle at once.
    if (writes) {
      one.front() = result;
      result->mark_untold();
      const std::lock_guard lock(nodes_mutex_);
      result->place_ = one.begin();
      result->stands_ = host_file::standing::writer;
      writers_[node].splice(writers_[node].end(), one);
    }
    for (std::uint32_t i = 0; i < shard_count; ++i) {
      const std::uint32_t number = (shard + i) % shard_count;
      if (put(shards_[number], number, result, handle)) return 0;
    }
  } catch (...) {
    leave_node();
    throw;
  }
  leave_node();
  return -EMFILE;
}

// False when the shard is full.
bool file_table::put(shard& s, std::uint32_t number, const std::shared_ptr<host_file>& file,
                     std::uint64_t& handle) {
  const std::unique_lock lock(s.mutex);
  auto place = static_cast<std::uint32_t>(s.entries.size());
  if (!s.unused.empty()) {
    place = s.unused.back();
    s.unused.pop_back();
  } else {
    if ((((place << shard_bits) | number) + 1) >> index_bits != 0) return false;
    if (s.unused.capacity() <= place) s.unused.reserve(2 * std::size_t{place} + 1);
    s.entries.push_back({nullptr, numbers_.first_generation});
  }
  entry& e = s.entries[place];
  e.file = file;
  handle = handle_of(e, place, number);
  return true;
}

// Null for a handle that is not open. The caller holds the shard's mutex.
const file_table::entry* file_table::entry_of(const shard& s, std::uint64_t handle) const {
  const std::uint64_t place = ((handle & ((1u << index_bits) - 1)) - 1) >> shard_bits;
  if (place >= s.entries.size()) return nullptr;
  const entry& e = s.entries[place];
  return e.file != nullptr && e.generation == handle >> index_bits ? &e : nullptr;
}

std::shared_ptr<host_file> file_table::find(std::uint64_t handle) const {
  const shard& s = shards_[shard_of(handle)];
  const std::shared_lock lock(s.mutex);
  const entry* const e = entry_of(s, handle);
  return e != nullptr ? e->file : nullptr;
}

void file_table::close_all() {
  for (std::uint32_t number = 0; number < shard_count; ++number) {
    const shard& s = shards_[number];
    for (std::uint32_t place = 0; place < s.entries.size(); ++place) {
      const entry& e = s.entries[place];
      if (e.file != nullptr) (void)close(handle_of(e, place, number), 0, closing::asks_nothing);
    }
  }
  // The rounds have ended before these were asked.
  host_file_list left;
  {
    const std::lock_guard lock(nodes_mutex_);
    for (const std::shared_ptr<host_file>& file : closed_)
      file->stands_ = host_file::standing::none;
    left.swap(closed_);
  }
  for (const std::shared_ptr<host_file>& file : left) file->close_backend_file();
}

int file_table::close(std::uint64_t handle, int discarded, closing how) {
  bool is_kept = false;
  std::shared_ptr<host_file> last;
  std::shared_ptr<writing_state> left;
  shard& s = shards_[shard_of(handle)];
  {
    const std::unique_lock lock(s.mutex);
    const entry* const found = entry_of(s, handle);
    if (found == nullptr) return -EBADF;
    entry& e = s.entries[static_cast<std::size_t>(found - s.entries.data())];
    last = std::move(e.file);
    e.file = nullptr;
    e.generation = (e.generation + 1) & generation_mask;
    // A place that has used all its generations stays empty, so no handle is issued twice.
    if (e.generation == ((numbers_.first_generation + numbers_.generations) & generation_mask))
      ++s.retired;
    else s.unused.push_back(static_cast<std::uint32_t>(found - s.entries.data()));
    epoch_.fetch_add(1);  // sequentially consistent: see is_open()
    // Several groups may ask for one close at the same time, and open the file as soon as it is
    // answered. So who finds the handle gone also finds the file left, and the loss in the log.
    if (last->writes()) {
      if (discarded != 0) errors_.add_discarded(last->path(), discarded);
      is_kept = forget_writer(*last, how);
    }
    if (last->node() != no_node) left = leave(last->version(), last->is_confirmed_);
  }
  if (is_kept && how == closing::asks) return ask_closed(*last);
  if (is_kept) awaits_asking_ = true;
  else last->close_backend_file();
  return 0;
}

std::size_t file_table::open_count() const {
  std::size_t count = 0;
  for (const shard& s : shards_) {
    const std::shared_lock lock(s.mutex);
    count += s.entries.size() - s.unused.size() - s.retired;
  }
  return count;
}

// Closes backend files to free descriptors. Returns true if it closed some, or left them for other
// threads to close. It scans all shards, `first_shard` first: an opener's own files are there, and
// it can close those at once.
bool file_table::make_room(unsigned first_shard) {
  // Collects half of the limit at a time, so that not every open walks a large table. Files without
  // an open backend file do not count: they may be many, and would hide the few that are open.
  std::vector<std::shared_ptr<host_file>> seen;
  const std::size_t want = descriptors_max_ / 2 + 16;
  seen.reserve(std::min(want, descriptors_->load()));
  for (unsigned n = 0; n < shard_count && seen.size() < want; ++n) {
    shard& s = shards_[(first_shard + n) % shard_count];
    const std::unique_lock lock(s.mutex);
    for (std::size_t i = 0; i < s.entries.size() && seen.size() < want; ++i) {
      s.hand = s.hand + 1 < s.entries.size() ? s.hand + 1 : 0;
      const std::shared_ptr<host_file>& file = s.entries[s.hand].file;
      if (file != nullptr && file->open_.load(std::memory_order_relaxed)) seen.push_back(file);
    }
  }
  epoch_.fetch_add(1, std::memory_order_release);  // a file that a worker remembers is in use
  // The first pass may only clear the marks of use.
  for (int pass = 0; pass < 2; ++pass) {
    bool closed = false;
    for (const auto& file : seen) closed = file->take_idle() != nullptr || closed;
    if (closed) return true;
  }
  return false;
}

}  // namespace gpufs

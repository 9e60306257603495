#include "service/extents.hpp"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <utility>

#include "gpufs/base/platform.cuh"

namespace gpufs {
namespace {

// A hash of an extent's name, never 0.
std::uint64_t name_of(std::uint64_t version, std::uint64_t number) {
  std::uint64_t x = version * 0x9e3779b97f4a7c15ull + number;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  return (x ^ (x >> 32)) | 1;
}

// Whether a file that now has the identity `now` is in its version's state, for loads of bytes
// before `end`. A file that is open for writing in this mount is, whatever its times say
// (service/file_table.hpp).
bool is_of_version(const host_file& file, const file_identity& now, std::uint64_t end) {
  const file_identity& version = file.version().identity;
  if (file.node() == no_node) return now == version;
  return now.device == version.device && now.inode == version.inode &&
         now.born_ns == version.born_ns && now.size >= end;
}

}  // namespace

extent_registrar::extent_registrar(device& d, file_table& files, timeline& events,
                                   const extent_options& options)
    : device_(d), files_(files), timeline_(events), options_(options) {
  thread_.start("the registrar", [this] { run(); });
}

extent_registrar::~extent_registrar() { ask_to_end(); }

void extent_registrar::ask_to_end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

bool extent_registrar::stop(const deadline& end) {
  ask_to_end();
  const bool ended = thread_.wait_until(end);
  if (!ended) thread_.leave();
  return ended;
}

extent_set::extent* extent_registrar::remember(extent_set& set, std::uint64_t number) {
  if (const auto at = set.extents.find(number); at != set.extents.end()) return &at->second;
  const std::uint64_t most = known_min + options_.budget_bytes / options_.extent_bytes;
  if (known_->fetch_add(1, std::memory_order_relaxed) >= most) {
    known_->fetch_sub(1, std::memory_order_relaxed);
    // Many may belong to versions that no group reads any more.
    lacks_budget_.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  try {
    set.known = known_;
    return &set.extents[number];
  } catch (...) {
    known_->fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

extent_location extent_registrar::touch(const std::shared_ptr<host_file>& file,
                                        std::uint64_t offset, urgency when) {
  const std::uint64_t size = file->version().identity.size;
  if (options_.budget_bytes == 0 || size < options_.file_bytes_min || offset >= size) return {};
  const std::uint64_t number = offset / options_.extent_bytes;
  std::uint64_t end = number;  // past the last extent whose state changed
  try {
    return note(file, number, end, when);
  } catch (const std::bad_alloc&) {
    if (end == number) return {};
    // They may be missing from the queue. The next read queues them again.
    extent_set& set = *file->version().extents();
    const std::lock_guard lock(set.mutex);
    for (std::uint64_t n = number; n < end; ++n) {
      const auto known = set.extents.find(n);
      if (known == set.extents.end()) continue;
      // For a quiet moment, only the push to `deferred_` can fail after a change of state.
      if (when == urgency::when_quiet) known->second.is_queued = false;
      extent_set::phase& state = known->second.state;
      if (state == extent_set::phase::wanted || state == extent_set::phase::deferred)
        state = extent_set::phase::none;
    }
    return {};
  }
}

// `end`: set past the last extent whose state this call changes. It is valid after an exception,
// too.
extent_location extent_registrar::note(const std::shared_ptr<host_file>& file, std::uint64_t number,
                                       std::uint64_t& end, urgency when) {
  file_version& version = file->version();
  const std::uint64_t name = name_of(version.number, number);
  std::atomic<std::uint64_t>& refused = known_refused_[(name >> 1) % known_refused_.size()];
  std::uint32_t reads = 1;
  if (refused.load(std::memory_order_relaxed) == name) {
    thread_local std::uint32_t skipped = 0;
    if (++skipped % looks_every != 0) return {};
    reads = looks_every;
  }
  bool was_queued = false;
  {
    extent_set& set = *version.extents();
    const std::lock_guard lock(set.mutex);
    extent_set::extent* const known = remember(set, number);
    if (known == nullptr) return {};
    extent_set::extent& e = *known;
    end = number + 1;
    if (e.state == extent_set::phase::refused && (e.reads += reads) < retry_reads) {
      if (reads == 1) refused.store(name, std::memory_order_relaxed);
      return {};
    }
    if (reads != 1) refused.store(0, std::memory_order_relaxed);
    if (e.state == extent_set::phase::registered) return e.location;
    if (e.state == extent_set::phase::wanted) return {};
    if (when == urgency::when_quiet) {
      if (e.state == extent_set::phase::deferred) return {};
      // An extent that is already deferred does not restart the wait. Otherwise a file that is read
      // again and again would never be registered.
      last_deferred_.store(platform::now_ns(), std::memory_order_relaxed);
    }
    e.reads = 0;
    e.state = when == urgency::when_quiet ? extent_set::phase::deferred : extent_set::phase::wanted;
    if (when == urgency::when_quiet) was_queued = std::exchange(e.is_queued, true);
    const std::uint64_t count =
        (version.identity.size + options_.extent_bytes - 1) / options_.extent_bytes;
    if (when == urgency::now && number != 0 && set.extents.contains(number - 1)) {
      for (; end < count && end <= number + options_.ahead; ++end) {
        extent_set::extent* const next = remember(set, end);
        if (next == nullptr) break;
        if (next->state != extent_set::phase::none && next->state != extent_set::phase::deferred)
          break;
        next->state = extent_set::phase::wanted;
      }
    }
  }
  if (was_queued) return {};
  {
    const std::lock_guard lock(mutex_);
    if (when == urgency::when_quiet) deferred_.push_back({file, file->shared_version(), number});
    else
      for (std::uint64_t n = number; n < end; ++n) jobs_.push_back({file, n});
  }
  wake_.notify_one();
  return {};
}

std::uint64_t extent_registrar::register_all(const std::shared_ptr<host_file>& file) {
  if (options_.budget_bytes == 0) return 0;
  std::uint64_t bytes = 0;
  const std::uint64_t count =
      (file->version().identity.size + options_.extent_bytes - 1) / options_.extent_bytes;
  for (std::uint64_t number = 0; number < count; ++number) bytes += register_one({file, number});
  return bytes;
}

void extent_registrar::run() {
  while (const std::optional<job> next = next_job()) {
    const bool recording = timeline_.on();
    const std::uint64_t begin_ns = recording ? platform::now_ns() : 0;
    std::uint64_t bytes = 0;
    try {
      bytes = register_one(*next);
    } catch (const std::bad_alloc&) {
      refuse(*next);
    }
    if (recording) {
      try {
        timeline_.add({"register", timeline::registrar_thread, begin_ns, platform::now_ns(),
                       next->number * options_.extent_bytes, bytes, bytes != 0 ? 0 : -EAGAIN,
                       next->file->path()});
      } catch (const std::bad_alloc&) {
        // No memory: the timeline lacks this event.
      }
    }
  }
}

std::optional<extent_registrar::job> extent_registrar::next_job() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty() || !deferred_.empty(); });
    if (stopping_) return std::nullopt;
    if (!jobs_.empty()) {
      job next = std::move(jobs_.front());
      jobs_.pop_front();
      return next;
    }
    const std::uint64_t quiet_at = last_deferred_.load(std::memory_order_relaxed) + quiet_ns;
    const std::uint64_t now = platform::now_ns();
    if (now >= quiet_at) {
      deferred_job due = std::move(deferred_.front());
      deferred_.pop_front();
      lock.unlock();
      // Without `mutex_`: the file and the version may be the last references, and a file's end may
      // close a descriptor.
      if (std::optional<job> next = if_wanted(std::move(due))) return next;
      lock.lock();
      continue;
    }
    (void)wake_.wait_for(lock, std::chrono::nanoseconds(quiet_at - now),
                         [this] { return stopping_ || !jobs_.empty(); });
  }
}

// Returns the job of an extent that has left the queue, if it still waits for a quiet moment and
// its file is open. Takes the extent out of the deferred state.
std::optional<extent_registrar::job> extent_registrar::if_wanted(deferred_job due) {
  std::shared_ptr<host_file> file = due.file.lock();
  GPUFS_SCHEDULE_POINT("extents.due");
  {
    extent_set& set = *due.version->extents();
    const std::lock_guard lock(set.mutex);
    const auto known = set.extents.find(due.number);
    if (known == set.extents.end()) return std::nullopt;
    known->second.is_queued = false;
    if (known->second.state != extent_set::phase::deferred) return std::nullopt;
    known->second.state = file != nullptr ? extent_set::phase::wanted : extent_set::phase::none;
  }
  if (file == nullptr) return std::nullopt;
  return job{std::move(file), due.number};
}

std::uint64_t extent_registrar::register_one(const job& j) {
  extent_set& set = *j.file->version().extents();
  // Allocates all memory before the registration, so that no registration is lost to an exception.
  std::forward_list<std::unique_ptr<file_mapping>> orphan(1);
  {
    const std::lock_guard lock(mutex_);
    const std::lock_guard set_lock(set.mutex);
    const extent_set::extent* const e = remember(set, j.number);
    if (e == nullptr) return 0;
    if (e->state == extent_set::phase::registered) return e->location.bytes;
    if (std::find(sets_.begin(), sets_.end(), j.file->version().extents()) == sets_.end())
      sets_.push_back(j.file->version().extents());
  }
  std::unique_ptr<file_mapping> mapping;
  const extent_location location = prepare(j, mapping);
  const std::lock_guard set_lock(set.mutex);
  extent_set::extent& e = set.extents.find(j.number)->second;  // made above, and never removed
  if (location.bytes != 0 && e.state != extent_set::phase::registered) {
    e.state = extent_set::phase::registered;
    e.location = location;
    e.mapping = std::move(mapping);
    ++set.registered;
    registered_.fetch_add(1);
    return location.bytes;
  }
  // The registration is useless: the file changed, the device has no address for it, or another
  // thread registered the extent too.
  // Keep it until it is given back, because unregistering may wait for kernels. No kernel knows of
  // it.
  if (mapping != nullptr) {
    orphan.front() = std::move(mapping);
    set.orphans.splice_after(set.orphans.before_begin(), orphan);
  }
  if (e.state == extent_set::phase::registered) return e.location.bytes;
  e.state = extent_set::phase::refused;
  e.reads = 0;
  refused_.fetch_add(1);
  return 0;
}

void extent_registrar::refuse(const job& j) {
  extent_set& set = *j.file->version().extents();
  const std::lock_guard lock(set.mutex);
  const auto known = set.extents.find(j.number);
  if (known == set.extents.end() || known->second.state == extent_set::phase::registered) return;
  known->second.state = extent_set::phase::refused;
  known->second.reads = 0;
  refused_.fetch_add(1);
}

bool extent_registrar::take_budget(std::uint64_t bytes) {
  const auto take = [&] {
    if (bytes_.fetch_add(bytes) + bytes <= options_.budget_bytes) return true;
    bytes_.fetch_sub(bytes);
    return false;
  };
  if (take()) return true;
  lacks_budget_.store(true, std::memory_order_relaxed);
  if (device_.unregistering_waits()) return false;
  give_back_unreachable();
  return take();
}

extent_location extent_registrar::prepare(const job& j, std::unique_ptr<file_mapping>& mapping) {
  const file_identity& identity = j.file->version().identity;
  const std::uint64_t offset = j.number * options_.extent_bytes;
  if (offset >= identity.size) return {};
  const std::uint64_t bytes = std::min(options_.extent_bytes, identity.size - offset);
  if (!take_budget(bytes)) return {};
  bool registered = false;
  try {
    std::shared_ptr<backend_file> file;
    if (files_.reach(*j.file, file) == 0) mapping = file->map(offset, bytes);
    if (mapping != nullptr && bring_into_cache(*file, *mapping, offset)) {
      file->fault_in(*mapping);
      // Whole host pages. The last page exists in full, with zeros past the end of the file.
      const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
      std::uint64_t address = 0;
      registered =
          device_.register_range(mapping->data(), (bytes + page - 1) / page * page, address);
      // The pinned pages belong to the version only if the file has not changed until now.
      file_identity now;
      if (registered && address != 0 && file->identify(now) == 0 &&
          is_of_version(*j.file, now, offset + bytes))
        return {j.number, address, bytes};
    }
  } catch (...) {
    // No memory, or an exception of the backend: refused like any other failure. Loads stay staged.
  }
  if (!registered) {
    mapping.reset();
    bytes_.fetch_sub(bytes);
  }
  return {};
}

bool extent_registrar::bring_into_cache(backend_file& file, const file_mapping& mapping,
                                        std::uint64_t offset) {
  double share = file.cached(mapping, offset);
  if (share >= cached_min) return true;
  file.read_ahead(offset, mapping.bytes());
  const deadline all = deadline::after(cold_time_ns);
  deadline stalled = deadline::after(stalled_time_ns);
  while (!stopping_ && all.left_ns() != 0 && stalled.left_ns() != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const double now = file.cached(mapping, offset);
    if (now >= cached_min) return true;
    if (now > share) stalled = deadline::after(stalled_time_ns);
    share = now;
  }
  return false;
}

void extent_registrar::unregister(std::unique_ptr<file_mapping>& mapping) {
  if (mapping == nullptr) return;
  device_.unregister_range(mapping->data());
  // Subtract only these bytes: the registrar may hold budget for an extent in progress.
  bytes_.fetch_sub(mapping->bytes());
  mapping.reset();
}

void extent_registrar::give_back_unreachable() {
  lacks_budget_.store(false, std::memory_order_relaxed);
  std::vector<std::shared_ptr<extent_set>> gone;
  std::forward_list<std::unique_ptr<file_mapping>> orphans;
  {
    const std::lock_guard lock(mutex_);
    gone.reserve(sets_.size());
    // Only its version shares a set, and a thread that registers holds the version. So a use count
    // of one means that no thread can reach the set.
    const auto is_gone = [](const std::shared_ptr<extent_set>& set) {
      return set.use_count() == 1;
    };
    const auto first =
        std::partition(sets_.begin(), sets_.end(), [&](const auto& set) { return !is_gone(set); });
    gone.assign(std::move_iterator(first), std::move_iterator(sets_.end()));
    sets_.erase(first, sets_.end());
    for (const auto& set : sets_) {
      const std::lock_guard set_lock(set->mutex);
      orphans.splice_after(orphans.before_begin(), set->orphans);
    }
  }
  // Without `mutex_`: this may wait for kernels, which may wait for workers that need it.
  for (auto& orphan : orphans) unregister(orphan);
  for (const auto& set : gone) {
    const std::lock_guard set_lock(set->mutex);
    for (auto& [number, e] : set->extents) unregister(e.mapping);
    for (auto& orphan : set->orphans) unregister(orphan);
  }
}

void extent_registrar::drop_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& set : sets_) {
    const std::lock_guard set_lock(set->mutex);
    for (auto& [number, e] : set->extents) {
      unregister(e.mapping);
      e = {.is_queued = e.is_queued};
    }
    set->registered = 0;
    for (auto& orphan : set->orphans) unregister(orphan);
    set->orphans.clear();
  }
  std::erase_if(sets_, [](const std::shared_ptr<extent_set>& set) { return set.use_count() == 1; });
}

std::uint64_t extent_registrar::registered_in(file_version& version) {
  if (!version.has_extents()) return 0;
  extent_set& set = *version.extents();
  const std::lock_guard lock(set.mutex);
  return set.registered;
}

}  // namespace gpufs

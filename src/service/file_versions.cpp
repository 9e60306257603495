// The versions of the file table: which version an open gets, and the nodes of versions that are
// open for writing.
#include <errno.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "service/extents.hpp"
#include "service/file_table.hpp"

namespace gpufs {

const std::shared_ptr<extent_set>& file_version::extents() {
  if (!has_extents()) {
    static std::mutex making;
    auto fresh = std::make_shared<extent_set>();
    const std::lock_guard lock(making);
    if (extents_ == nullptr) extents_ = std::move(fresh);
    has_extents_.store(true, std::memory_order_release);  // pairs with has_extents()
  }
  return extents_;
}

// Adds an open to the version's node, and makes the node for the first writer. The caller holds the
// mutex of the version's shard. `spare`: for a writer, the state that a version without one takes.
// False when there are no more nodes.
bool file_table::join(file_version& version, bool writes, std::shared_ptr<writing_state>& spare,
                      std::uint32_t& node) {
  if (version.node == no_node && !writes) return true;
  if (writes) {
    const std::lock_guard lock(nodes_mutex_);
    if (version.node == no_node && nodes_unused_.empty()) {
      if (writers_.size() == nodes_max_) return false;
      if (nodes_unused_.capacity() <= writers_.size())
        nodes_unused_.reserve(2 * writers_.size() + 1);
      writers_.emplace_back();
      nodes_unused_.push_back(static_cast<std::uint32_t>(writers_.size() - 1));
    }
    const std::uint32_t own = version.node != no_node ? version.node : nodes_unused_.back();
    if (version.node == no_node) nodes_unused_.pop_back();
    version.node = own;
    if (version.writing == nullptr) {
      // A call under way, or one that is still to come, may take an error of this version, too.
      const std::shared_ptr<writing_state> last = version.last_writing.lock();
      version.writing = last != nullptr && is_unsettled(*last) ? last : std::move(spare);
      version.writing->node = own;
      version.last_writing = version.writing;
    }
  }
  node = version.node;
  ++version.sharers;
  return true;
}

// Removes a file from its version's node. The last one frees the node, and gets what the writers
// shared, to be destroyed after all mutexes are released. `is_confirmed` is read under the mutex.
std::shared_ptr<writing_state> file_table::leave(file_version& version, const bool& is_confirmed) {
  version_shard& s = versions_[shard_of_version({version.identity.device, version.identity.inode})];
  const std::lock_guard lock(s.mutex);
  if (is_confirmed && --version.writers == 0) {
    version.left_at = departures_.fetch_add(1) + 1;  // sequentially consistent: see enter()
    version.left_changes = is_changed(version);
  }
  if (--version.sharers != 0) return nullptr;
  const std::lock_guard nodes(nodes_mutex_);
  nodes_unused_.push_back(version.node);
  version.node = no_node;
  return std::move(version.writing);
}

// Whether calls that tell of lost bytes are under way, or still to come. The caller holds
// nodes_mutex_.
bool file_table::is_unsettled(writing_state& state) const {
  return state.syncs.is_busy() ||
         std::ranges::any_of(closed_, [&](const std::shared_ptr<host_file>& file) {
           return file->writing().get() == &state;
         });
}
bool file_table::has_unsettled(const file_version& version) const {
  const std::shared_ptr<writing_state> last = version.last_writing.lock();
  if (last == nullptr) return false;
  const std::shared_lock lock(nodes_mutex_);
  return is_unsettled(*last);
}

bool file_table::is_written(const file_version& version) {
  version_shard& s = versions_[shard_of_version({version.identity.device, version.identity.inode})];
  const std::lock_guard lock(s.mutex);
  return version.writers != 0 || is_changed(version);
}

// Returns the latest state of the file, or null. `may_be_ours`: whether this table has written the
// file, or may have.
std::shared_ptr<writing_state> file_table::last_writing(const key& of, bool& may_be_ours) {
  version_shard& s = versions_[shard_of_version(of)];
  const std::lock_guard lock(s.mutex);
  const auto known = s.versions.find(of);
  if (known == s.versions.end()) {
    may_be_ours = s.forgotten_left_at != 0;
    return nullptr;
  }
  may_be_ours = known->second->was_written || known->second->left_at != 0;
  return known->second->last_writing.lock();
}

bool file_table::confirm(std::uint64_t handle) {
  const std::shared_ptr<host_file> file = find(handle);
  if (file == nullptr) return true;  // its caller has withdrawn the open
  file_version& v = file->version();
  version_shard& s = versions_[shard_of_version({v.identity.device, v.identity.inode})];
  GPUFS_SCHEDULE_POINT("files.confirm");
  const std::lock_guard lock(s.mutex);
  {
    // Closed already, by a kernel that did not wait for the answer. If it is closed after this,
    // leave() waits for the shard's mutex, and then finds it confirmed.
    const std::shared_lock nodes(nodes_mutex_);
    if (file->writes() && file->stands_ != host_file::standing::writer) return true;
  }
  if (v.writers == 0) return false;
  if (file->writes() && !file->is_confirmed_) {
    ++v.writers;
    file->is_confirmed_ = true;
  }
  return true;
}

// Whether backend calls are under way that write or truncate the file. For a version without
// writers no new call begins, so false stays false.
bool file_table::is_changed(const file_version& version) {
  // Sequentially consistent: see change_under_way.
  return version.changes != nullptr && version.changes->load() != 0;
}

// For a version without writers. The caller holds the mutex of the version's shard. An open that
// identified the file before this may have the size from before those changes.
void file_table::note_end_of_changes(file_version& version) {
  if (!version.left_changes || is_changed(version)) return;
  version.left_changes = false;
  version.left_at = departures_.fetch_add(1) + 1;  // sequentially consistent: see enter()
}

// `departures`: the number of them before the file was identified. Returns -EAGAIN when the last
// writer has left since, because `identity` may be from before its last write.
int file_table::version_of(const file_identity& identity, std::int64_t seen_ns,
                           std::uint64_t departures, bool writes,
                           std::atomic<std::uint64_t>* joining, given_version& given) {
  const std::int64_t changed =
      identity.modified_ns > identity.changed_ns ? identity.modified_ns : identity.changed_ns;
  const bool racy = seen_ns - changed < racy_ns;
  const key name{identity.device, identity.inode};
  version_shard& s = versions_[shard_of_version(name)];
  const auto holds = [&](const version_map::const_iterator& at) {
    if (at == s.versions.end()) return false;
    const file_version& v = *at->second;
    // A version that is being written matches, whatever its times say. A version that was written
    // never matches again. An open for writing matches no version that was only read.
    if (v.writers != 0) return true;
    return !writes && !v.was_written && !v.racy && v.identity == identity;
  };
  // Created without the mutex, and used if the version has none.
  std::shared_ptr<writing_state> spare = writes ? std::make_shared<writing_state>() : nullptr;
  const auto give = [&](const std::shared_ptr<file_version>& v) {
    given.joined = v->writers != 0;
    // Another file with the same inode number, which some file systems repeat.
    if (given.joined && v->identity.born_ns != identity.born_ns) return -EBUSY;
    if (!join(*v, writes, spare, given.node)) return -EMFILE;
    given.version = v;
    if (joining != nullptr) joining->store(std::uint64_t{given.node} + 1);
    given.is_confirmed = writes && !(given.joined && joining != nullptr);
    if (given.is_confirmed) ++v->writers;
    return 0;
  };
  {
    const std::lock_guard lock(s.mutex);
    if (const auto known = s.versions.find(name); holds(known)) return give(known->second);
  }
  // Created without the mutex, including its map node. What it replaces is destroyed without the
  // mutex.
  const std::uint64_t number = next_version_.fetch_add(1, std::memory_order_relaxed);
  if (number >= numbers_.versions_end) return -EMFILE;
  auto fresh = std::make_shared<file_version>(number, identity, racy);
  if (writes) fresh->changes = std::make_shared<std::atomic<unsigned>>(0);
  version_map made, forgotten;
  made.emplace(name, fresh);
  auto place = made.extract(made.begin());
  const std::lock_guard lock(s.mutex);
  const auto known = s.versions.find(name);
  if (holds(known)) return give(known->second);  // another thread opened it meanwhile
  if (known != s.versions.end()) {
    note_end_of_changes(*known->second);
    fresh->last_writing = known->second->last_writing;
  }
  fresh->left_at = known != s.versions.end() ? known->second->left_at : s.forgotten_left_at;
  if (departures < fresh->left_at) return -EAGAIN;
  fresh->was_written = writes;
  if (known != s.versions.end() && known->second->identity.born_ns == identity.born_ns)
    fresh->emptied_by = known->second->emptied_by.load();
  if (known != s.versions.end() && is_changed(*known->second)) {
    if (writes) return -EBUSY;
    fresh->changes = known->second->changes;
    fresh->left_changes = true;
  }
  if (const int status = give(fresh); status < 0) return status;
  given.is_fresh = true;
  if (known != s.versions.end()) {
    known->second.swap(place.mapped());
    return 0;
  }
  // The shard is full: forget its versions. Their pages are read again, and `emptied_by` is lost.
  // Open files keep their own versions. Versions that are being written or changed must stay.
  if (s.versions.size() >= versions_max) {
    s.versions.swap(forgotten);
    for (auto at = forgotten.begin(); at != forgotten.end();) {
      const auto next = std::next(at);
      if (at->second->writers == 0) note_end_of_changes(*at->second);
      if (at->second->writers != 0 || at->second->left_changes || has_unsettled(*at->second))
        s.versions.insert(forgotten.extract(at));
      else s.forgotten_left_at = std::max(s.forgotten_left_at, at->second->left_at);
      at = next;
    }
  }
  s.versions.insert(std::move(place));
  return 0;
}

}  // namespace gpufs

// One open file of the service, and the version that it shares with other opens (file_table.hpp has
// the locks, and what a version is).
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gpufs/backend.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/sync_rounds.hpp"
#include "service/write_permits.hpp"

namespace gpufs {

class extent_set;  // service/extents.hpp
class host_file;

using host_file_list = std::list<std::shared_ptr<host_file>>;

// The state that a version's open files share while it is open for writing. Thread-safe, except for
// the field that a mutex guards.
struct writing_state {
  write_permits permits;
  sync_rounds syncs;
  // How many of these files may have an untold error (host_file::mark_untold()). Sequentially
  // consistent. Never too low.
  std::atomic<unsigned> untold{0};
  std::uint32_t node = no_node;  // of the version that got this state last; guarded by
                                 // file_table::nodes_mutex_
};

// One state of one file, shared by all its opens. The table remembers many versions without an open
// file, so a version is small. Thread-safe, except for the fields that a mutex guards.
class file_version {
 public:
  file_version(std::uint64_t n, const file_identity& i, bool may_change_unseen)
      : number(n), identity(i), racy(may_change_unseen) {}

  const std::uint64_t number;
  const file_identity identity;
  const bool racy;
  std::atomic<bool> delivered{false};  // its bytes went to the device with an open
  // The launch that emptied the file last (O_TRUNC). 0: none. A later version of the file inherits
  // it.
  std::atomic<std::uint64_t> emptied_by{0};

  // The next eight: for a version that is, or was, open for writing. Guarded by the mutex of the
  // version's shard (file_table).
  std::uint32_t node = no_node;            // its state on the device; no_node when no file uses it
  std::shared_ptr<writing_state> writing;  // set while the version has a node
  // The latest one of this version, or of the file's versions before it.
  std::weak_ptr<writing_state> last_writing;
  unsigned sharers = 0;  // open files that use the node
  unsigned writers = 0;  // those of them that write and are confirmed
  bool was_written = false;
  // When the last confirmed writer left: a number of file_table::departures_. 0: none has left.
  std::uint64_t left_at = 0;
  // When the last confirmed writer left, calls that `changes` counts were under way. Cleared when
  // an open finds that they have ended: that is a departure, too.
  bool left_changes = false;
  // The number of backend calls under way that write or truncate the file. Set before the version
  // is shared. A version that is written has its own count. A version that is only read has the
  // count of the written version before it, if that was not 0. Otherwise null.
  std::shared_ptr<std::atomic<unsigned>> changes;

  // Creates the set at the first call. Only extent_registrar calls it, for files large enough to be
  // registered, so most versions have none.
  const std::shared_ptr<extent_set>& extents();
  // Whether extents() has created the set. Acquire: pairs with the release in extents(). Without it
  // the set might not be visible.
  bool has_extents() const { return has_extents_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> has_extents_{false};
  std::shared_ptr<extent_set> extents_;
};

// A path whose bytes are part of a sum while it lives.
class counted_path {
 public:
  counted_path(std::string text, std::shared_ptr<std::atomic<std::size_t>> sum)
      : text_(std::move(text)), sum_(std::move(sum)) {
    // Relaxed: the sum orders no other memory.
    sum_->fetch_add(text_.size(), std::memory_order_relaxed);
  }
  ~counted_path() { sum_->fetch_sub(text_.size(), std::memory_order_relaxed); }
  counted_path(const counted_path&) = delete;
  counted_path& operator=(const counted_path&) = delete;
  const std::string& text() const { return text_; }
  bool fits(std::size_t most) const { return sum_->load(std::memory_order_relaxed) <= most; }

 private:
  const std::string text_;
  const std::shared_ptr<std::atomic<std::size_t>> sum_;
};

// One open file. Thread-safe.
class host_file {
 public:
  // `node`: the version's node, if the file uses it, else no_node. `is_fresh`: this open made the
  // version. `joined`: other files had the version open for writing. `is_confirmed`: see
  // file_table::confirm().
  host_file(std::shared_ptr<const counted_path> path, bool no_follow, bool writes,
            std::uint32_t node, bool is_fresh, bool joined, bool is_confirmed,
            std::shared_ptr<file_version> version, std::shared_ptr<close_listener> closes,
            std::shared_ptr<backend_file> file)
      : path_(std::move(path)), no_follow_(no_follow), writes_(writes), is_fresh_(is_fresh),
        node_(node), joined_(joined), is_confirmed_(is_confirmed), version_(std::move(version)),
        closes_(std::move(closes)), writing_(node != no_node ? version_->writing : nullptr),
        file_(std::move(file)) {}

  const std::string& path() const { return path_->text(); }
  bool writes() const { return writes_; }
  bool is_fresh() const { return is_fresh_; }
  bool joined() const { return joined_; }
  // A report of this file's close may tell of an error that no call was told: the next round of the
  // file asks for it. So after each write through this file, and from its open on, because an open
  // can take an error of earlier writes. Only for a file that writes.
  void mark_untold() {
    if (untold_.load()) return;
    writing_->untold.fetch_add(1);  // first, because others see the mark and go on
    if (untold_.exchange(true)) writing_->untold.fetch_sub(1);
  }
  std::uint32_t node() const { return node_; }
  file_version& version() const { return *version_; }
  const std::shared_ptr<file_version>& shared_version() const { return version_; }
  // Only for a file that uses a node.
  const std::shared_ptr<writing_state>& writing() const { return writing_; }
  // Null for a file that uses no node.
  std::shared_ptr<write_permits> permits() const {
    return writing_ != nullptr ? std::shared_ptr<write_permits>(writing_, &writing_->permits)
                               : nullptr;
  }

 private:
  friend class file_table;
  // Takes the backend file if no thread uses it and it was not used since the last call. Returns
  // null otherwise. The next reach() reopens it.
  std::shared_ptr<backend_file> take_idle();
  // Drops the backend file when the last handle is closed. The registrar may keep this object in
  // its queue for long; it reopens the path if it needs to.
  void close_backend_file();

  const std::shared_ptr<const counted_path> path_;
  const bool no_follow_;
  // A file that writes keeps its backend file: the path may lead to another file, or to none,
  // later.
  const bool writes_;
  const bool is_fresh_;
  const std::uint32_t node_;
  const bool joined_;
  bool is_confirmed_;  // guarded by the mutex of the version's shard
  const std::shared_ptr<file_version> version_;
  const std::shared_ptr<close_listener> closes_;  // of its backend files; null: nobody is told
  // The version's state, kept while the file uses the node.
  const std::shared_ptr<writing_state> writing_;
  // Removes the mark. Returns whether there was one.
  bool take_untold() {
    if (!untold_.load() || !untold_.exchange(false)) return false;
    writing_->untold.fetch_sub(1);
    return true;
  }
  // Where `place_` is: among the writers of its node, or among the closed files that were not asked
  // yet; `in_round`: a round was requested that asks it. Guarded by file_table::nodes_mutex_.
  enum class standing { none, writer, closed, in_round };
  standing stands_ = standing::none;
  host_file_list::iterator place_;
  std::atomic<bool> untold_{false};  // sequentially consistent; see mark_untold()
  std::mutex mutex_;                 // guards file_ and used_
  std::shared_ptr<backend_file> file_;
  bool used_ = true;              // used since make_room() last passed it (CLOCK)
  std::atomic<bool> open_{true};  // file_ is not null; a hint that is read without the mutex
};

// Marks a backend call that writes or truncates a file, while it lasts.
class change_under_way {
 public:
  // Sequentially consistent: pairs with file_table::is_changed(). The caller checks after this
  // whether the file is still open (file_table::is_open(), is_written_through()). So either the
  // caller sees the close, or a later open sees the count and returns -EBUSY.
  explicit change_under_way(const file_version& version) : count_(*version.changes) {
    count_.fetch_add(1);
  }
  ~change_under_way() { count_.fetch_sub(1); }
  change_under_way(const change_under_way&) = delete;
  change_under_way& operator=(const change_under_way&) = delete;

 private:
  std::atomic<unsigned>& count_;
};

}  // namespace gpufs

// The service's open files: handles that device code holds, host descriptors behind them, and the
// versions of files.
//
// A mount gives each handle once, and each version number once. So a request that is served late,
// when its file is closed and another one has its place, finds no file. Both count up from a random
// number, so that what a faulty kernel takes for a handle (zeros, small numbers, text) matches no
// open file. They are no secret, and need not be: a kernel can read the handles of all open files
// in the mount's device memory, and may use each of these files anyway.
//
// A handle is not a host descriptor. The table keeps at most `descriptors_max` backend files open
// and re-opens one when it is needed again, so that a mount may have 65,536 files open where the
// process may have 1,024.
//
// Handles are in shards, versions in others, each with a mutex of its own, so that openers seldom
// meet: an opener puts its files into the shard that it names, a version's shard follows from its
// file. No mutex is held during I/O, while objects are made or destroyed (but for a table that
// grows), or while another is taken, but that of the nodes.
//
// Versions: a number names one state of one file, and is never used again. At an open, device,
// inode, size, mtime and ctime are compared with what was seen last; any difference gives a new
// number, so cached pages of the old one are misses. Times are only as fine as the file system's
// clock: a file that had changed within `racy_ns` before it was looked at could change again
// without showing it, so its next open gets a new number in any case.
//
// Writing: a file's first open for writing gives it a new version, with a *node*, the state that
// the device's open files of the version share (inode_state in cache/arena.cuh). Whoever opens the
// file while it is open for writing gets the same version, whatever its times say: they change
// because of that writing. After the last writer's close the version is never given again.
//
// Writes and truncations that hang in the backend may outlive the last writer's close: their
// callers give up in time. They would land on what is written next. So as long as one is under way
// no later version of the file is opened for writing (-EBUSY). (While a version has writers, the
// device knows of them: inode_state::lost.)
//
// Which launch emptied a file last (O_TRUNC) is remembered as long as its versions are: of a
// million files. It is the file's, not the path's. A file that is removed and made anew, with the
// same inode, within one tick of the file system's clock is taken for the old one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpufs/backend.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/file_error_log.hpp"
#include "service/sync_rounds.hpp"
#include "service/write_turn.hpp"

namespace gpufs {

class extent_set;  // service/extents.hpp

// What a file needs while it is open for writing. Thread-safe.
struct writing_state {
  write_permits permits;
  sync_rounds syncs;
};

// One state of one file, shared by all its opens. Many are remembered that have no open file, so it
// is small. Thread-safe.
class file_version {
 public:
  file_version(std::uint64_t n, const file_identity& i, bool may_change_unseen)
      : number(n), identity(i), racy(may_change_unseen) {}

  const std::uint64_t number;
  const file_identity identity;
  const bool racy;
  std::atomic<bool> delivered{false};  // its bytes went to the device with an open
  // The launch that emptied the file last, as O_TRUNC asks; 0: none. A later version of the file
  // has it from this one.
  std::atomic<std::uint64_t> emptied_by{0};

  // Of a version that is, or was, open for writing; guarded by the mutex of its shard (file_table).
  std::uint32_t node = no_node;  // its device-side state; as long as any file of it is open
  std::shared_ptr<writing_state> writing;  // as long as it has a node
  unsigned sharers = 0;                    // open files that were told of the node
  unsigned writers = 0;                    // of these: those that write
  bool was_written = false;
  // Calls of the backend under way that write or cut the file. Of a version that is written; one
  // that is read has the count of the written one before it, while that is not 0. Else null.
  std::shared_ptr<std::atomic<unsigned>> changes;

  // Made when it is first asked for: by the registrar, for files that are large enough to be
  // registered. Most are not.
  const std::shared_ptr<extent_set>& extents();

 private:
  std::atomic<bool> has_extents_{false};
  std::shared_ptr<extent_set> extents_;
};

// A path that is counted in a sum of bytes as long as it lives.
class counted_path {
 public:
  counted_path(std::string text, std::shared_ptr<std::atomic<std::size_t>> sum)
      : text_(std::move(text)), bytes_(text_.size()), sum_(std::move(sum)) {
    // Relaxed: a number, by which nothing else becomes known.
    sum_->fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~counted_path() {
    if (sum_ != nullptr) sum_->fetch_sub(bytes_, std::memory_order_relaxed);
  }
  counted_path(counted_path&& other) noexcept = default;
  counted_path& operator=(counted_path&&) = delete;
  const std::string& text() const { return text_; }
  bool fits(std::size_t most) const { return sum_->load(std::memory_order_relaxed) <= most; }

 private:
  std::string text_;
  std::size_t bytes_;
  std::shared_ptr<std::atomic<std::size_t>> sum_;  // null in one that was moved from
};

// One open file. Thread-safe.
class host_file {
 public:
  // `node`: the version's, if the file takes part in it. `is_fresh`: its open has made the version.
  // `joined`: others had the version open for writing then.
  host_file(counted_path path, bool no_follow, bool writes, std::uint32_t node, bool is_fresh,
            bool joined, std::shared_ptr<file_version> version, std::shared_ptr<backend_file> file)
      : path_(std::move(path)), no_follow_(no_follow), writes_(writes), is_fresh_(is_fresh),
        node_(node), joined_(joined), version_(std::move(version)),
        writing_(node != no_node ? version_->writing : nullptr), file_(std::move(file)) {}

  const std::string& path() const { return path_.text(); }
  bool writes() const { return writes_; }
  bool is_fresh() const { return is_fresh_; }
  bool joined() const { return joined_; }
  // Whether its close has been reported, so that nobody hears of an error of what is written
  // through it since.
  bool is_close_reported() const { return is_close_reported_; }
  std::uint32_t node() const { return node_; }
  file_version& version() const { return *version_; }
  const std::shared_ptr<file_version>& shared_version() const { return version_; }
  // Of a file that takes part in a node.
  writing_state& writing() const { return *writing_; }
  // Null for the others.
  std::shared_ptr<write_permits> permits() const {
    return writing_ != nullptr ? std::shared_ptr<write_permits>(writing_, &writing_->permits)
                               : nullptr;
  }

 private:
  friend class file_table;
  // Takes the backend's file away if nobody is using it; null if somebody is.
  std::shared_ptr<backend_file> rest();
  // Gives the backend's file up, when the last handle is closed. The registrar may have the file in
  // its queue for long; it opens the path again.
  void let_go();

  const counted_path path_;
  const bool no_follow_;
  const bool
      writes_;  // then its backend's file stays open: the path may lead elsewhere, or nowhere
  const bool is_fresh_;
  const std::uint32_t node_;
  const bool joined_;
  const std::shared_ptr<file_version> version_;
  const std::shared_ptr<writing_state>
      writing_;  // the version's, as long as the file takes part in its node
  // Among the writers of its node, if it is one of them; guarded by the table's nodes_mutex_.
  std::list<std::shared_ptr<host_file>>::iterator place_;
  bool is_writer_ = false;
  std::atomic<bool> is_close_reported_{false};
  std::mutex mutex_;  // guards file_ and used_
  std::shared_ptr<backend_file> file_;
  bool used_ = true;              // since the last look for one to close (CLOCK)
  std::atomic<bool> open_{true};  // file_ is not null; to be looked at without the mutex
};

// A call of the backend that writes or cuts a file, as long as it lasts.
class change_under_way {
 public:
  // Sequentially consistent: pairs with file_table::version_of(), which takes a version that has no
  // writers any more as one that nobody changes; see file_table::is_written_through().
  explicit change_under_way(const file_version& version) : count_(*version.changes) {
    count_.fetch_add(1);
  }
  ~change_under_way() { count_.fetch_sub(1); }
  change_under_way(const change_under_way&) = delete;
  change_under_way& operator=(const change_under_way&) = delete;

 private:
  std::atomic<unsigned>& count_;
};

// Thread-safe.
class file_table {
 public:
  static constexpr std::int64_t racy_ns =
      2'000'000'000;  // FAT's two seconds are the coarsest clock in use

  // How handles and versions are numbered.
  struct numbering {
    std::uint64_t first_generation = 0;                  // of all places
    std::uint64_t generations = std::uint64_t{1} << 46;  // of a place; then the place stays empty
    std::uint64_t first_version = 1;                     // at least 1
    std::uint64_t versions_end = gpufs::versions_end;    // then opens give -EMFILE
    // Starts at random numbers, with room for as many as a mount can open.
    static numbering random();
  };

  // `nodes_max`: how many versions may be open for writing. 0: the mount is read-only.
  file_table(std::shared_ptr<backend> io, std::size_t descriptors_max, std::uint32_t nodes_max,
             const numbering& numbers);
  file_table(std::shared_ptr<backend> io, std::size_t descriptors_max, std::uint32_t nodes_max = 0)
      : file_table(std::move(io), descriptors_max, nodes_max, numbering::random()) {}

  // Of `descriptors_max`, what files that are open for writing may take, together with what the
  // backend keeps: they keep their descriptors, so that the others would not have any, and the
  // program itself none that was left to it. Opens past it give -EMFILE.
  std::size_t written_max() const { return descriptors_max_ - descriptors_max_ / 8; }

  // Bytes of the paths of all open files: 512 for each handle that there is. Opens past it give
  // -ENFILE.
  static constexpr std::size_t path_bytes_max = std::size_t{128} << 20;

  // 0 and a handle (never 0), or -errno. `shard`: where to put it, if there is room; threads that
  // open at the same time name different ones.
  int open(std::string path, bool no_follow, std::uint64_t& handle,
           std::shared_ptr<host_file>& file, unsigned shard = 0);
  bool is_read_only() const { return nodes_max_ == 0; }
  // Callers of the next three have asked is_read_only(). The same for a file that is to be changed,
  // or created. -EBUSY: for writing, while a write or truncation of a closed version of it is under
  // way.
  int open_to_change(std::string path, const open_how& how, std::uint64_t& handle,
                     std::shared_ptr<host_file>& file);
  int unlink(const std::string& path) { return io_->unlink(path); }
  int rename(const std::string& path, const std::string& new_path) {
    return io_->rename(path, new_path);
  }
  // Null for a handle that is not open.
  std::shared_ptr<host_file> find(std::uint64_t handle) const;
  // One of the files through which a version is open for writing: the one whose close was reported
  // longest ago, or never; null if there is none. `name`: node_name().
  std::shared_ptr<host_file> find_writer(std::uint64_t name) const;
  // All files that are open for writing.
  std::vector<std::shared_ptr<host_file>> writers() const;
  // 0, or -EBADF.
  int close(std::uint64_t handle);
  // Closes all handles. Only when no other thread uses the table.
  void close_all();

  // What went wrong with files of this table.
  file_error_log& errors() { return errors_; }
  const file_error_log& errors() const { return errors_; }

  // What a thread looked up last, so that the common read takes no lock. Each worker has one of its
  // own; it lets go of everything when any file was closed since, or when it is cleared.
  struct lookups {
    struct entry {
      std::uint64_t name = 0;  // 0: none
      std::shared_ptr<host_file> file;
      std::shared_ptr<backend_file> reached;
    };
    using entries = std::array<entry, 8>;
    std::uint64_t epoch = 0;
    entries open;     // by handle
    entries writers;  // by node_name()
    void clear() { open = {}, writers = {}; }
    static std::size_t place(std::uint64_t name) { return name % std::tuple_size_v<entries>; }
  };
  // The entry of a handle, or of a node's writer (find_writer), with the backend's file reached; 0,
  // -EBADF, or as reach().
  int look_up(std::uint64_t handle, lookups& known, lookups::entry*& found);
  int look_up_writer(std::uint64_t name, lookups& known, lookups::entry*& found);

  // A node's writer, if it is remembered; else null. Takes no lock.
  const host_file* remembered_writer(std::uint64_t name, const lookups& known) const {
    const lookups::entry& e = known.writers[lookups::place(name)];
    return e.name == name && known.epoch == epoch_.load(std::memory_order_acquire) ? e.file.get()
                                                                                   : nullptr;
  }

  // Whether a file that was looked up by its handle, or a node's writer by its name, is open still.
  // Asked once more by a thread that has made itself known by a change_under_way: either this sees
  // the close, or who opens the file later sees the change.
  bool is_open(std::uint64_t handle, const lookups& known) const {
    return known.epoch == epoch_.load() || find(handle) != nullptr;
  }
  bool is_written_through(std::uint64_t name, const lookups& known) const {
    return known.epoch == epoch_.load() || find_writer(name) != nullptr;
  }

  // Tells the file, if it is remembered, that this will be read in a moment. Only for speed.
  static void expect(std::uint64_t handle, const lookups& known, std::uint64_t bytes,
                     std::uint64_t offset) {
    const lookups::entry& e = known.open[lookups::place(handle)];
    if (e.name == handle && e.reached != nullptr) e.reached->expect(bytes, offset);
  }

  // The backend's file, opened again if it had to be closed; 0, or -errno: -ESTALE when the path
  // leads elsewhere now.
  int reach(host_file& file, std::shared_ptr<backend_file>& reached);

  // Whether a file that was opened to be changed can be read too.
  static bool is_readable(host_file& file) {
    const std::lock_guard lock(file.mutex_);
    return file.file_ == nullptr || file.file_->readable();
  }

  // As backend_file::report_close(), which needs a descriptor more for a moment. `reached`: the
  // file's, by reach(). From now on no other file's bytes are written through it, unless all files
  // of its node have been reported.
  int report_close(host_file& file, backend_file& reached);

  // Reads until `bytes` are there, or the end, or an error: interrupted and short reads are
  // continued. Bytes read, or -errno.
  static std::int64_t read(backend_file& file, char* to, std::uint64_t bytes, std::uint64_t offset);
  // Writes all bytes, or those whose bits are set in `mask` if that is not null; as read(). The
  // bytes, or -errno.
  static std::int64_t write(backend_file& file, const char* from, std::uint64_t bytes,
                            std::uint64_t offset, const std::uint64_t* mask);

  std::size_t open_count() const;

  // As the backend's.
  std::unique_ptr<descriptor_table_guard> enter_opener() { return io_->enter_opener(); }
  void close_handed() { io_->close_handed(); }

 private:
  // A handle: the place's generation, 46 bits, then place and shard, 18 bits, as one number that is
  // never 0.
  static constexpr std::uint32_t index_bits =
      18;  // twice the records of a mount: closes arrive late
  static constexpr std::uint64_t generation_mask = (std::uint64_t{1} << (64 - index_bits)) - 1;
  static constexpr std::uint32_t shard_bits = 4;
  static constexpr std::uint32_t shard_count = 1u << shard_bits;
  static constexpr std::size_t version_shards = 64;
  static constexpr std::size_t versions_max =
      (std::size_t{1} << 20) / version_shards;  // of a shard
  static constexpr unsigned attempts_max = 4;   // to open a file when there are no descriptors

  struct key {
    std::uint64_t device, inode;
    bool operator==(const key& other) const = default;
  };
  // Of the hash's high bits, as the map uses the low ones.
  static std::size_t shard_of_version(const key& k) { return (mix(k) >> 32) % version_shards; }
  static std::uint64_t mix(const key& k) { return k.inode * 0x9e3779b97f4a7c15ull ^ k.device; }
  struct key_hash {
    std::size_t operator()(const key& k) const { return std::hash<std::uint64_t>()(mix(k)); }
  };
  struct entry {
    std::shared_ptr<host_file> file;
    std::uint64_t generation =
        0;  // at most generation_mask; the next ones follow it, from the mask to 0
  };

  struct alignas(64) shard {
    mutable std::shared_mutex mutex;  // guards the rest
    std::vector<entry> entries;
    std::vector<std::uint32_t>
        unused;               // places; has room for all, so that a close allocates nothing
    std::size_t retired = 0;  // places that have used up their generations
    std::size_t hand = 0;
  };
  using version_map = std::unordered_map<key, std::shared_ptr<file_version>, key_hash>;
  struct alignas(64) version_shard {
    std::mutex mutex;  // guards the rest
    version_map versions;
  };

  template <class Open>
  int open_backend(const Open& open, bool writes, unsigned first_shard,
                   std::shared_ptr<backend_file>& file);
  int open_to_read(const std::string& path, bool no_follow, unsigned first_shard,
                   std::shared_ptr<backend_file>& file);
  int enter(counted_path path, bool no_follow, bool writes, std::shared_ptr<backend_file> file,
            std::uint64_t& handle, std::shared_ptr<host_file>& result, unsigned shard);
  // What `attempt` says, after making room as often as may help if that is a lack of descriptors.
  template <class Attempt>
  int with_room(unsigned first_shard, const Attempt& attempt);
  bool put(shard& s, std::uint32_t number, const std::shared_ptr<host_file>& file,
           std::uint64_t& handle);
  const entry* entry_of(const shard& s, std::uint64_t handle) const;
  int look_up(lookups::entries& among, std::uint64_t name, lookups& known, lookups::entry*& found);
  static std::uint64_t shard_of(std::uint64_t handle) { return (handle - 1) & (shard_count - 1); }
  static std::uint64_t handle_of(const entry& e, std::uint32_t place, std::uint32_t shard) {
    return (e.generation << index_bits) | (((place << shard_bits) | shard) + 1);
  }
  // A version, its node if the file takes part in it, whether it was made for this open, and
  // whether it was being written.
  struct given_version {
    std::shared_ptr<file_version> version;
    std::uint32_t node = no_node;
    bool is_fresh = false;
    bool joined = false;
  };
  // 0; -EMFILE when there are no more nodes, or versions; -EBUSY as open_to_change().
  int version_of(const file_identity& identity, std::int64_t seen_ns, bool writes,
                 given_version& given);
  static bool is_changed(const file_version& version);
  bool join(file_version& version, bool writes, std::uint32_t& node);
  void leave(file_version& version, bool writes);
  void forget_writer(host_file& file);
  bool make_room(unsigned first_shard);

  const std::shared_ptr<backend> io_;
  const std::size_t descriptors_max_;
  const numbering numbers_;
  file_error_log errors_;
  std::atomic<std::uint64_t> epoch_{1};  // raised by whatever lookups must not outlive
  std::array<shard, shard_count> shards_;
  std::array<version_shard, version_shards> versions_;
  // Files whose close was reported come first, the last one reported at the front.
  using writer_list = std::list<std::shared_ptr<host_file>>;
  mutable std::shared_mutex nodes_mutex_;    // guards the next two; taken last
  std::vector<std::uint32_t> nodes_unused_;  // has room for all, so that a close allocates nothing
  std::vector<writer_list> writers_;         // of each node that was made
  const std::uint32_t nodes_max_;
  // Relaxed: only its being different each time matters; a version passes to others under a mutex.
  std::atomic<std::uint64_t> next_version_;
  std::atomic<unsigned> next_room_{
      0};  // the shard at which a thread without one of its own looks for room next
  // Backend files open now. Shared with their deleters, so that it is exact whoever lets one go.
  const std::shared_ptr<std::atomic<std::size_t>> descriptors_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  const std::shared_ptr<std::atomic<std::size_t>> written_ =
      std::make_shared<std::atomic<std::size_t>>(0);  // of these
  // Of the paths of files that live. Shared with them, as some outlive this.
  const std::shared_ptr<std::atomic<std::size_t>> path_bytes_ =
      std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace gpufs

// The service's open files: the handles that device code holds, the host descriptors behind them,
// and the versions of files.
//
// Threads. Workers, openers and copiers look up, open and close files. The registrar calls reach().
// The host's own calls read writers() and errors(). All member functions are thread-safe, except
// close_all() and the destructor. Each thread passes its own `lookups`.
//
// Locks:
//   - shard::mutex guards a shard of the handles. An opener names the shard for its files, so
//     openers seldom contend.
//   - version_shard::mutex guards a shard of the version map, and the fields of its versions that
//     say so. The shard follows from the file's device and inode.
//   - nodes_mutex_ guards the node lists, and a file's place in them.
//   - host_file::mutex_ guards one file's backend file.
//   - listeners_link::mutex keeps this table alive while a close of the backend reports an error.
//
// A close takes the first three within each other, in this order, and the error log's. An open
// takes the second, the third and that of the file's rounds (sync_rounds). The last two are taken
// to put a closed file in `closed_`, or to take it out. A listener takes its mutex, and then one of
// the others at a time. No other thread takes a mutex while it holds another. No mutex is held
// during I/O, or while objects are created or destroyed (only a table may grow).
//
// Handles. A mount issues each handle once, and each version number once. So a late request, whose
// file is closed and whose place has another file, finds no file. Both count up from a random
// number, so that values a faulty kernel may take for a handle (zeros, small numbers, text) match
// no open file. Handles are not secret, and need not be: a kernel can read the handles of all open
// files in the mount's device memory, and may use these files anyway.
//
// A handle is not a host descriptor. The table keeps at most `descriptors_max` backend files open,
// and reopens a file when it is needed again. So a mount may have 131,072 files open where the
// process may have 1,024 descriptors.
//
// Versions. A version number names one state of one file, and is never used again. At each open,
// the table compares device, inode, size, mode, and the times of creation, modification and change
// with the last version of the file. Any
// difference makes a new version, so cached pages of the old version are misses. Times are only as
// fine as the file system's clock: a file that changed less than `racy_ns` before its open could
// change again without a new time. So such a version is `racy`, and the file's next open makes a
// new version in any case.
//
// Writing. A file's first open for writing makes a new version with a *node*: the state that the
// device's open files of the version share (inode_state in cache/arena.cuh). Every open of the file
// while it is open for writing returns the same version, whatever its times say, because this mount
// changes them. After the last writer's close, no open returns that version again. If the time of
// creation shows that an open has found another file with the same inode number, the open fails
// (-EBUSY).
//
// An open identifies the file before it looks for its version. If the last writer leaves in
// between, the size may be from before its last write. So the open identifies the file again
// (`departures_`): otherwise its appends would overwrite that writer's. The same holds for the end
// of a change that outlived its writers (see below).
//
// Changes under way. A write or truncation that hangs in the backend may outlive the last writer's
// close, because its caller gives up in time. Its bytes would overwrite what a later writer writes.
// So while such a call is under way, no later version of the file is opened for writing (-EBUSY).
// (While a version has writers, the device knows of such calls: inode_state::timed_out.)
//
// Emptied files. The table remembers which launch emptied a file last (O_TRUNC) as long as it
// remembers the file's versions: those of a million files. The record belongs to the file, not to
// its path. A file that is removed and created again, with the same inode, within one tick of the
// file system's clock, is taken for the old file.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpufs/backend.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/file_error_log.hpp"
#include "service/host_file.hpp"

namespace gpufs {

// Thread-safe, except for close_all() and the destructor.
class file_table {
 public:
  static constexpr std::int64_t racy_ns =
      2'000'000'000;  // FAT's two seconds are the coarsest clock in use

  // The ranges of handles and versions.
  struct numbering {
    std::uint64_t first_generation = 0;                  // of every place
    std::uint64_t generations = std::uint64_t{1} << 46;  // per place; then it stays empty
    std::uint64_t first_version = 1;                     // at least 1
    std::uint64_t versions_end = gpufs::versions_end;    // from here on opens return -EMFILE
    // Random starts, with room for as many as a mount can open.
    static numbering random();
  };

  // `descriptors_max`: backend files that may be open. `nodes_max`: versions that may be open for
  // writing; 0: the mount is read-only.
  file_table(std::shared_ptr<backend> io, std::size_t descriptors_max, std::uint32_t nodes_max,
             const numbering& numbers);
  file_table(std::shared_ptr<backend> io, std::size_t descriptors_max, std::uint32_t nodes_max = 0)
      : file_table(std::move(io), descriptors_max, nodes_max, numbering::random()) {}
  ~file_table();

  // The number of backend files that are open now.
  std::size_t descriptors_open() const { return descriptors_->load(std::memory_order_relaxed); }

  // The share of `descriptors_max` that files open for writing, and descriptors that the backend
  // keeps, may take together. They keep their descriptors, so without a limit no descriptor would
  // be left for files that are read, or for the program. Opens past it return -EMFILE.
  std::size_t written_max() const { return descriptors_max_ - descriptors_max_ / 8; }

  // The limit of the path bytes of all open files: 512 for each possible handle. Opens past it
  // return -ENFILE.
  static constexpr std::size_t path_bytes_max = std::size_t{128} << 20;

  // Opens a file for reading. Returns 0 and a handle, which is never 0, or -errno. `shard`: the
  // shard to try first; threads that open at the same time name different shards. Waits for I/O.
  int open(std::string path, bool no_follow, std::uint64_t& handle,
           std::shared_ptr<host_file>& file, unsigned shard = 0);
  bool is_read_only() const { return nodes_max_ == 0; }
  // Opens or creates a file that is to be changed. Otherwise as open(). Returns -EBUSY for an open
  // for writing, while a write or truncation of a closed version of the file is under way. The
  // caller has checked is_read_only(), as for the next two functions. `joining`: if the file joins
  // writers, it is not confirmed before confirm(). Set to the node + 1, under the mutex of the
  // version's shard, before the file counts as a writer.
  int open_to_change(std::string path, const open_how& how, std::uint64_t& handle,
                     std::shared_ptr<host_file>& file,
                     std::atomic<std::uint64_t>* joining = nullptr);
  // Opens a file once more, whose first open was not confirmed: identifies its backend file again.
  // The path is not looked up again, because it may lead elsewhere by now, and because O_EXCL would
  // find the file that the first open has created. `file`: in: the file, which this closes; out: as
  // for the first open, like `handle`.
  int open_again(std::uint64_t& handle, std::shared_ptr<host_file>& file,
                 std::atomic<std::uint64_t>* joining);
  // For a file that joined the writers of its version, before its open is answered. Returns whether
  // the version is still being written by a file whose open was answered, and counts this one as
  // such. Otherwise the last of them has left since, and other programs may have changed the file:
  // it must be opened again (open_again()). No open joins files that are not confirmed, or several
  // could keep a version alive that all of them should leave.
  bool confirm(std::uint64_t handle);
  // Whether the version is open for writing, or calls that change the file are under way.
  bool is_written(const file_version& version);
  int unlink(const std::string& path) { return io_->unlink(path); }
  int rename(const std::string& path, const std::string& new_path) {
    return io_->rename(path, new_path);
  }
  // Returns null for a handle that is not open.
  std::shared_ptr<host_file> find(std::uint64_t handle) const;
  // Returns the file that writes a version's bytes: an open writer whose close was not reported,
  // else the writer whose close was reported first. Null when there is none. `name`: node_name().
  std::shared_ptr<host_file> find_writer(std::uint64_t name) const;
  // All files that are open for writing, or were closed and not asked yet whether bytes are lost.
  std::vector<std::shared_ptr<host_file>> writers() const;
  // Returns -EBADF, or 0, or the error of lost bytes. `discarded`: -errno of the bytes that the
  // last gclose has discarded, or 0. A close that returns -EBADF, because another one was first,
  // returns after that one has reported them and left the version. A file that may have an untold
  // error (host_file::mark_untold()) is asked for it, when it has left: at once, or in the next
  // round if one is under way (sync_rounds). Then an error goes only to the log, and to later calls
  // of the file. Waits for I/O of this file. Does not throw.
  // A thread that may not call backend_file::report_close() leaves that to others: to the next
  // ask_closed().
  enum class closing { asks, leaves_asking, asks_nothing };
  int close(std::uint64_t handle, int discarded = 0, closing how = closing::asks);
  // Asks one of the files that such threads have closed. Does not throw. Waits for its I/O.
  void ask_closed() noexcept;
  // Whether there are any. Relaxed: a thread that misses one looks again.
  bool awaits_asking() const { return awaits_asking_.load(std::memory_order_relaxed); }
  // Closes all handles, and asks nothing. Called when no other thread uses the table.
  void close_all();

  // The failures of this table's files.
  file_error_log& errors() { return errors_; }
  const file_error_log& errors() const { return errors_; }

  // A thread's latest lookups, so that a common read takes no lock. Each thread has its own. The
  // next look_up() drops all entries if `epoch_` has changed, as it does at each close.
  struct lookups {
    struct entry {
      std::uint64_t name = 0;  // 0: empty
      std::shared_ptr<host_file> file;
      std::shared_ptr<backend_file> reached;
    };
    using entries = std::array<entry, 8>;
    std::uint64_t epoch = 0;
    entries open;      // by handle
    entries writers;   // by node_name()
    bool asks = true;  // whether the thread may call backend_file::report_close()
    void clear() { open = {}, writers = {}; }
    static std::size_t place(std::uint64_t name) { return name % std::tuple_size_v<entries>; }
  };
  // Finds the entry of a handle, or of a node's writer (find_writer), with its backend file open.
  // Returns 0, -EBADF, or the error of reach().
  int look_up(std::uint64_t handle, lookups& known, lookups::entry*& found);
  int look_up_writer(std::uint64_t name, lookups& known, lookups::entry*& found);

  // A node's writer if `known` has it, else null. Takes no lock.
  const host_file* remembered_writer(std::uint64_t name, const lookups& known) const {
    const lookups::entry& e = known.writers[lookups::place(name)];
    return e.name == name && known.epoch == epoch_.load(std::memory_order_acquire) ? e.file.get()
                                                                                   : nullptr;
  }

  // Whether a handle that was looked up, or a node that was looked up by name, is still open.
  // Called again after change_under_way was constructed. Sequentially consistent: either this call
  // sees the close, or a later open sees the change.
  bool is_open(std::uint64_t handle, const lookups& known) const {
    return known.epoch == epoch_.load() || find(handle) != nullptr;
  }
  bool is_written_through(std::uint64_t name, const lookups& known) const {
    return known.epoch == epoch_.load() || find_writer(name) != nullptr;
  }

  // Announces a read to the backend file, if `known` has it. A performance hint.
  static void expect(std::uint64_t handle, const lookups& known, std::uint64_t bytes,
                     std::uint64_t offset) {
    const lookups::entry& e = known.open[lookups::place(handle)];
    if (e.name == handle && e.reached != nullptr) e.reached->expect(bytes, offset);
  }

  // Returns the backend file, reopened if it was closed. 0, or -errno: -ESTALE when the path leads
  // to another file or to none. Waits for I/O if it reopens.
  int reach(host_file& file, std::shared_ptr<backend_file>& reached);

  // Whether a file that was opened to be changed can also be read.
  static bool is_readable(host_file& file) {
    const std::lock_guard lock(file.mutex_);
    return file.file_ == nullptr || file.file_->readable();
  }

  // Called after each write through a file. If the file was closed meanwhile, asks whether the
  // bytes are lost, because no later call would. Returns the error if this thread makes that round,
  // or 0. `known`: where `through` was looked up.
  int note_write(const lookups::entry& through, const lookups& known);
  // Before a request that reports the file's close: marks it (host_file::mark_untold()).
  // find_writer() prefers other writers of the node from now on, unless the closes of all were
  // reported.
  void note_close(host_file& file);
  // Requests a round, which tells whether bytes of a file are lost, and makes rounds if no other
  // thread does (sync_rounds). Returns the result of the round if this thread has made it, else 0.
  // `done` gets it in any case. Waits only for I/O of this file.
  struct round_request {
    sync_rounds::kind what = sync_rounds::kind::close;
    sync_rounds::answer done;
    std::shared_ptr<void> place;  // see sync_rounds::add()
  };
  // `of`: host_file::writing(). `is_added`: set once `done` will be called, so also if an exception
  // of the backend leaves this function later.
  int ask(std::shared_ptr<writing_state> of, round_request r, bool& is_added);
  // As backend_file::report_close(), which needs one more descriptor for a moment.
  int report_close(backend_file& reached);

  // Reads `bytes` bytes, or up to the end of the file or an error. Continues interrupted and short
  // reads. Returns the bytes read, or -errno.
  static std::int64_t read(backend_file& file, char* to, std::uint64_t bytes, std::uint64_t offset);
  // Writes all bytes, or with a `mask` only those whose bits are set. Continues as read() does.
  // Returns the bytes written, or -errno. Before each call of the backend it asks `goes_on`: a mask
  // may take many. If not, returns -EIO.
  static std::int64_t write(backend_file& file, const char* from, std::uint64_t bytes,
                            std::uint64_t offset, const std::uint64_t* mask,
                            const std::function<bool()>& goes_on);

  std::size_t open_count() const;

  // As in `backend`.
  std::unique_ptr<descriptor_table_guard> enter_opener() { return io_->enter_opener(); }
  void close_handed() { io_->close_handed(); }
  // Rounds make no calls any more, and return -ECANCELED if none has failed before. The files that
  // were not asked yet are among writers().
  void end_rounds() { rounds_ended_ = true; }

 private:
  // A handle is one number, never 0: a place's generation (46 bits), then place and shard (18
  // bits).
  // Twice the records of a mount, because closes arrive late.
  static constexpr std::uint32_t index_bits = 18;
  static constexpr std::uint64_t generation_mask = (std::uint64_t{1} << (64 - index_bits)) - 1;
  static constexpr std::uint32_t shard_bits = 4;
  static constexpr std::uint32_t shard_count = 1u << shard_bits;
  static constexpr std::size_t version_shards = 64;
  // In one shard.
  static constexpr std::size_t versions_max = (std::size_t{1} << 20) / version_shards;
  static constexpr unsigned attempts_max = 4;  // for an open that lacks descriptors
  // For an open during which the last writer leaves, again and again.
  static constexpr unsigned identifications_max = 64;

  struct key {
    std::uint64_t device, inode;
    bool operator==(const key& other) const = default;
  };
  // Uses the hash's high bits, because the map uses the low bits.
  static std::size_t shard_of_version(const key& k) { return (mix(k) >> 32) % version_shards; }
  static std::uint64_t mix(const key& k) { return k.inode * 0x9e3779b97f4a7c15ull ^ k.device; }
  struct key_hash {
    std::size_t operator()(const key& k) const { return std::hash<std::uint64_t>()(mix(k)); }
  };
  struct entry {
    std::shared_ptr<host_file> file;
    // At most generation_mask. It counts up, from the mask to 0.
    std::uint64_t generation = 0;
  };

  struct alignas(64) shard {
    mutable std::shared_mutex mutex;  // guards the other members
    std::vector<entry> entries;
    // Free places. It has capacity for all places, so that a close does not allocate.
    std::vector<std::uint32_t> unused;
    std::size_t retired = 0;  // places that have used all their generations
    std::size_t hand = 0;
  };
  using version_map = std::unordered_map<key, std::shared_ptr<file_version>, key_hash>;
  struct alignas(64) version_shard {
    std::mutex mutex;  // guards the other members
    version_map versions;
    std::uint64_t forgotten_left_at = 0;  // the latest `left_at` of versions that it has forgotten
  };

  template <class Open>
  int open_backend(const Open& open, bool writes, unsigned first_shard,
                   std::shared_ptr<backend_file>& file);
  int open_to_read(const std::string& path, bool no_follow, unsigned first_shard,
                   std::shared_ptr<backend_file>& file);
  int enter(const std::shared_ptr<const counted_path>& path, std::shared_ptr<close_listener> closes,
            bool no_follow, bool writes, std::atomic<std::uint64_t>* joining,
            std::shared_ptr<backend_file> file, std::uint64_t& handle,
            std::shared_ptr<host_file>& result, unsigned shard);
  int try_to_enter(const std::shared_ptr<const counted_path>& path,
                   std::shared_ptr<close_listener>& closes, bool no_follow, bool writes,
                   std::atomic<std::uint64_t>* joining, std::shared_ptr<backend_file>& file,
                   std::optional<key>& identified, std::uint64_t& handle,
                   std::shared_ptr<host_file>& result, unsigned shard);
  // Returns the result of `attempt`. If descriptors are lacking (-EMFILE, -ENFILE), makes room and
  // retries, up to attempts_max times.
  int with_room(unsigned first_shard, const std::function<int()>& attempt);
  bool put(shard& s, std::uint32_t number, const std::shared_ptr<host_file>& file,
           std::uint64_t& handle);
  const entry* entry_of(const shard& s, std::uint64_t handle) const;
  int look_up(lookups::entries& among, std::uint64_t name, lookups& known, lookups::entry*& found);
  static std::uint64_t shard_of(std::uint64_t handle) { return (handle - 1) & (shard_count - 1); }
  static std::uint64_t handle_of(const entry& e, std::uint32_t place, std::uint32_t shard) {
    return (e.generation << index_bits) | (((place << shard_bits) | shard) + 1);
  }
  // A version for an open: its node if the file uses it, whether this open made it, and whether
  // other files had it open for writing.
  struct given_version {
    std::shared_ptr<file_version> version;
    std::uint32_t node = no_node;
    bool is_fresh = false;
    bool joined = false;
    bool is_confirmed = false;
  };
  // Finds or makes the version of an open. 0; -EMFILE when there are no more nodes or versions;
  // -EBUSY as in open_to_change(), and if another file with the same inode number is written.
  int version_of(const file_identity& identity, std::int64_t seen_ns, std::uint64_t departures,
                 bool writes, std::atomic<std::uint64_t>* joining, given_version& given);
  static bool is_changed(const file_version& version);
  void note_end_of_changes(file_version& version);
  bool join(file_version& version, bool writes, std::shared_ptr<writing_state>& spare,
            std::uint32_t& node);
  std::shared_ptr<writing_state> leave(file_version& version, const bool& is_confirmed);
  bool is_unsettled(writing_state& state) const;
  bool has_unsettled(const file_version& version) const;
  [[nodiscard]] bool forget_writer(host_file& file, closing how);
  struct file_to_ask {
    std::shared_ptr<host_file> file;
    bool is_closed = false;
  };
  std::vector<file_to_ask> files_to_ask(const writing_state& of, sync_rounds::kind what) const;
  int make_round(writing_state& of, sync_rounds::kind what);
  int sync(host_file& file);
  int report(host_file& file, bool again);
  int report_closed(host_file& file);
  int ask_closed(const host_file& file) noexcept;
  bool forget_closed(host_file& file, bool at_once);
  void give_up(const std::string& path, backend_file& file,
               const std::optional<key>& identified) noexcept;
  void note_loss(const std::optional<key>& of, int status) noexcept;
  class listener;
  struct listeners_link;
  std::shared_ptr<close_listener> listen(std::shared_ptr<const counted_path> path, const key& of);
  void note_close_error(const std::string& path, const key& of, int status) noexcept;
  std::shared_ptr<writing_state> last_writing(const key& of, bool& may_be_ours);
  bool make_room(unsigned first_shard);

  const std::shared_ptr<backend> io_;
  const std::size_t descriptors_max_;
  const numbering numbers_;
  file_error_log errors_;
  std::atomic<std::uint64_t> departures_{0};  // of last confirmed writers, from all versions
  std::atomic<std::uint64_t> epoch_{1};       // raised when `lookups` become invalid
  std::array<shard, shard_count> shards_;
  std::array<version_shard, version_shards> versions_;
  mutable std::shared_mutex nodes_mutex_;    // guards the next three
  std::vector<std::uint32_t> nodes_unused_;  // capacity for all nodes: a close does not allocate
  // Indexed by node. Files whose close was reported come first. The last one reported is at the
  // front.
  std::vector<host_file_list> writers_;
  // Closed before they were asked whether bytes are lost. The next round of their file does that.
  host_file_list closed_;
  std::atomic<bool> awaits_asking_{false};
  std::atomic<bool> rounds_ended_{false};
  const std::shared_ptr<listeners_link> listeners_;
  const std::uint32_t nodes_max_;
  // Relaxed: each value must only be unique. A mutex orders what passes with a version.
  std::atomic<std::uint64_t> next_version_;
  // The shard where a thread without its own shard looks for room next.
  std::atomic<unsigned> next_room_{0};
  // The number of open backend files. Their deleters share it, so that it stays exact when a thread
  // drops a file after this table is gone.
  const std::shared_ptr<std::atomic<std::size_t>> descriptors_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  // Those of them that write.
  const std::shared_ptr<std::atomic<std::size_t>> written_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  // The sum of path bytes. The files share it, because some outlive this table.
  const std::shared_ptr<std::atomic<std::size_t>> path_bytes_ =
      std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace gpufs

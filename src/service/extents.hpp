// Extents: ranges of files that are mapped and registered, so that groups load pages from them
// without the host.
//
// Threads. Workers and copiers call touch(). The registrar's thread registers. The host calls
// register_all(), drop_all() and stop(), and give_back_unreachable() when the device is idle. Where
// unregistering does not wait for kernels, a thread that registers calls give_back_unreachable()
// too.
//
// Locks. `mutex_` guards the job queues and `sets_`. extent_set::mutex guards one set. `mutex_` is
// taken first when both are needed. copies() is taken before them, and held during a copy.
//
// States of one extent, guarded by its set's mutex:
//
//   none     -> wanted      a staged read touched it, or one of the eight before it; queued
//   none     -> deferred    a staged run touched it; queued for a quiet moment, if it is not yet
//   deferred -> wanted      a read touched it, or the quiet moment came
//   deferred -> none        its file was closed before the quiet moment
//   wanted   -> registered
//   wanted   -> refused     no budget, not in the page cache, or an error of the driver
//   refused  -> wanted or deferred, after `retry_reads` more staged reads or runs
//
// register_all() registers an extent from any state, or refuses it.
//
// While the driver registers memory, no other thread can enqueue a copy. Many workers that stage
// runs are faster than one registrar, so a registration must not disturb them: hence the quiet
// moment.
//
// A registered extent stays as long as its version can be reached. Where unregistering waits for
// kernels, it never happens while the service serves requests. It then happens only in drop_all()
// and give_back_unreachable(), which a mount calls when its device is idle. Elsewhere the registrar
// also unregisters unreachable extents when the budget is used up.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <forward_list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "base/host_threads.hpp"
#include "device/device.hpp"
#include "service/file_table.hpp"
#include "service/timeline.hpp"

namespace gpufs {

// Where an extent is registered.
struct extent_location {
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // 0: not registered
};

// The extents of one file version. extent_registrar uses the members; `mutex` guards them.
class extent_set {
 public:
  extent_set() = default;
  ~extent_set() {
    if (known != nullptr) known->fetch_sub(extents.size(), std::memory_order_relaxed);
  }
  extent_set(const extent_set&) = delete;
  extent_set& operator=(const extent_set&) = delete;

 private:
  friend class extent_registrar;
  enum class phase { none, deferred, wanted, registered, refused };
  struct extent {
    phase state = phase::none;
    bool is_queued = false;  // `deferred_` has it, also after a change of state; at most once
    std::uint32_t reads = 0;
    std::unique_ptr<file_mapping> mapping{};
    extent_location location{};
  };
  std::mutex mutex;
  std::unordered_map<std::uint64_t, extent> extents;         // an extent is never removed
  std::uint64_t registered = 0;                              // those that are registered
  std::forward_list<std::unique_ptr<file_mapping>> orphans;  // registered, but no kernel knows them
  // The registrar's counter of `extents` in all sets. The set may outlive the registrar, so they
  // share it. Null until the set has an extent.
  std::shared_ptr<std::atomic<std::size_t>> known;
};

struct extent_options {
  std::uint64_t budget_bytes = 0;  // 0: no direct loads
  std::uint64_t extent_bytes = 0;
  std::uint64_t file_bytes_min = 0;  // smaller files are not worth a mapping
  // How many extents after the touched one are registered with it, if the extent before it is
  // known. A sequential reader is faster than a registration that begins only when the reader
  // arrives.
  std::uint64_t ahead = 0;
};

// Owns a thread that registers extents. Thread-safe, except where a function says otherwise.
class extent_registrar {
 public:
  // Throws gpufs::error EAGAIN when the thread cannot be created.
  extent_registrar(device& d, file_table& files, timeline& events, const extent_options& options);
  // Waits for the thread without a deadline, unless stop() has returned false.
  ~extent_registrar();
  extent_registrar(const extent_registrar&) = delete;
  extent_registrar& operator=(const extent_registrar&) = delete;

  // when_quiet: once no new extent was touched with when_quiet for `quiet_ns`.
  enum class urgency { now, when_quiet };
  // Returns where the extent of `offset` is registered. If it is not, queues it for registration,
  // and returns a location with 0 bytes. Does not wait.
  extent_location touch(const std::shared_ptr<host_file>& file, std::uint64_t offset,
                        urgency when = urgency::now);

  // Who copies from an extent holds this mutex shared, from touch() until the device has the copy
  // in its queue.
  std::shared_mutex& copies() { return copies_; }

  // Registers a whole file now. Returns the bytes registered in all. Waits for I/O.
  std::uint64_t register_all(const std::shared_ptr<host_file>& file);

  std::uint64_t extent_bytes() const { return options_.extent_bytes; }
  // Extents that are remembered in any state: at most this number plus the number that the budget
  // can register. Further extents are not registered, because a kernel may touch a large file
  // anywhere. Each takes about 120 bytes.
  static constexpr std::size_t known_min = 65'536;
  std::size_t known_count() const { return known_->load(std::memory_order_relaxed); }

  // Unregisters extents that no kernel can load from: those of replaced versions without an open
  // file, and those that no kernel knows. Where device::unregistering_waits(), the caller must
  // ensure that no kernel runs.
  void give_back_unreachable();
  // Whether, since the last give_back_unreachable(), an extent was refused for lack of budget, or
  // not remembered because too many are.
  bool lacks_budget() const { return lacks_budget_.load(std::memory_order_relaxed); }

  // Unregisters everything. The caller holds copies(), and ensures that no kernel runs and that the
  // device's queues are empty.
  void drop_all();
  // Asks the thread to end. Does not wait.
  void ask_to_end();
  // Ends the thread. Returns false when it has not ended by the deadline, because it hangs in a
  // backend. It is then detached, and everything it uses must stay alive.
  [[nodiscard]] bool stop(const deadline& end);

  struct counts {
    std::uint64_t registered, bytes, refused;
  };
  counts count() const { return {registered_.load(), bytes_.load(), refused_.load()}; }
  static std::uint64_t registered_in(file_version& version);

 private:
  static constexpr std::uint32_t retry_reads = 1024;
  // Each thread takes the mutex for one of this many reads of an extent known to be refused.
  static constexpr std::uint32_t looks_every = 16;
  static constexpr double cached_min = 0.95;
  static constexpr std::uint64_t quiet_ns = 20'000'000;
  // How long to wait for readahead: as long as more of the file arrives, and in all.
  static constexpr std::uint64_t stalled_time_ns = 1'000'000'000, cold_time_ns = 5'000'000'000;

  struct job {
    std::shared_ptr<host_file> file;
    std::uint64_t number;
  };

  // Holds no file open, because many may be closed before the quiet moment.
  struct deferred_job {
    std::weak_ptr<host_file> file;
    std::shared_ptr<file_version> version;
    std::uint64_t number;
  };

  extent_location note(const std::shared_ptr<host_file>& file, std::uint64_t number,
                       std::uint64_t& end, urgency when);
  void run();
  void refuse(const job& j);
  static std::optional<job> if_wanted(deferred_job due);
  // Returns the set's extent, and makes it if need be. Null when too many are remembered. The
  // caller holds the set's mutex.
  extent_set::extent* remember(extent_set& set, std::uint64_t number);
  // Returns the next job, or none when the thread is to end. Waits. Called by the registrar's
  // thread.
  std::optional<job> next_job();
  // Returns the bytes registered, now or before. 0 when refused.
  std::uint64_t register_one(const job& j);
  bool take_budget(std::uint64_t bytes);
  void unregister(std::unique_ptr<file_mapping>& mapping);
  bool bring_into_cache(backend_file& file, const file_mapping& mapping, std::uint64_t offset);
  // Maps and registers an extent. Returns an empty location on failure. `mapping` is then set if a
  // registration was made all the same.
  extent_location prepare(const job& j, std::unique_ptr<file_mapping>& mapping);

  device& device_;
  file_table& files_;
  timeline& timeline_;
  const extent_options options_;
  // Relaxed: the count orders no other memory.
  const std::shared_ptr<std::atomic<std::size_t>> known_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  std::atomic<std::uint64_t> registered_{0}, bytes_{0}, refused_{0};
  // The names of refused extents, each at its hash's place. Most reads of a refused extent need not
  // take the set's mutex, where all workers would contend. Relaxed: hints; a wrong one only delays
  // an attempt.
  std::array<std::atomic<std::uint64_t>, 4096> known_refused_{};
  std::shared_mutex copies_;
  std::mutex mutex_;  // guards jobs_, deferred_, sets_ and stopping_
  std::condition_variable wake_;
  std::deque<job> jobs_;
  std::deque<deferred_job> deferred_;
  std::atomic<std::uint64_t> last_deferred_{
      0};  // time of the last when_quiet touch; relaxed, a hint
  // The sets that have registered extents, or may have soon.
  std::vector<std::shared_ptr<extent_set>> sets_;
  std::atomic<bool> lacks_budget_{false};
  std::atomic<bool> stopping_{false};
  host_threads thread_;
};

}  // namespace gpufs

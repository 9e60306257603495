// Extents: parts of files mapped and registered, so that groups pull pages from them without the
// host.
//
// State of one extent, guarded by its set's mutex:
//   none -> deferred (a staged run touched it; queued for a quiet moment) -> wanted, registered or
//   refused none -> wanted (a staged read touched it; queued) -> registered
//                                                    \-> refused (budget, not in the page cache,
//                                                    the driver said no)
//   refused -> wanted again after `retry_reads` more staged reads of it.
// While the driver registers, it lets no other thread enqueue a copy: many workers that stage runs
// are faster than one registrar, and are not to be disturbed. A registered extent stays as long as
// its version can be reached. Where unregistering waits for kernels it does not happen while
// serving, but in drop_all() and give_back_unreachable(), which a mount calls when its device is
// idle. Elsewhere the registrar gives back what cannot be reached when the budget is used up.
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
#include <unordered_map>
#include <vector>

#include "base/host_threads.hpp"
#include "device/device.hpp"
#include "service/file_table.hpp"
#include "service/timeline.hpp"

namespace gpufs {

struct extent_hint {
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // 0: not registered
};

// The extents of one file version. Members are the registrar's.
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
    std::uint32_t reads = 0;
    std::unique_ptr<file_mapping> mapping;
    extent_hint notice;
  };
  std::mutex mutex;
  std::unordered_map<std::uint64_t, extent> extents;         // none is ever removed
  std::uint64_t registered = 0;                              // of these
  std::forward_list<std::unique_ptr<file_mapping>> orphans;  // registered, told to nobody
  // Of the registrar, which it may outlive: counts `extents` of all sets. Null in a set that never
  // had any.
  std::shared_ptr<std::atomic<std::size_t>> known;
};

struct extent_options {
  std::uint64_t budget_bytes = 0;  // 0: no direct path
  std::uint64_t extent_bytes = 0;
  std::uint64_t file_bytes_min = 0;  // smaller files are not worth a mapping
  // How many extents behind one whose neighbour before it is in use are registered with it: who
  // reads a file from front to back is faster than a registration that begins when it arrives.
  std::uint64_t ahead = 0;
};

// Registers in a thread of its own. Thread-safe.
class extent_registrar {
 public:
  // Throws gpufs::error EAGAIN when the thread cannot be made.
  extent_registrar(device& d, file_table& files, timeline& record, const extent_options& options);
  ~extent_registrar();  // waits for the thread without a deadline, unless stop() has returned false
  extent_registrar(const extent_registrar&) = delete;
  extent_registrar& operator=(const extent_registrar&) = delete;

  enum class urgency { now, when_quiet };  // quiet: nothing new was touched so for `quiet_ns`
  // What to tell the reader of `offset`; asks for registration when the extent is not registered
  // yet. Does not wait.
  extent_hint touch(const std::shared_ptr<host_file>& file, std::uint64_t offset,
                    urgency when = urgency::now);

  // Registers all of a file now. Bytes registered in all. Waits for I/O.
  std::uint64_t register_all(const std::shared_ptr<host_file>& file);

  std::uint64_t extent_bytes() const { return options_.extent_bytes; }
  // Extents that are remembered, in whatever state, are so many at most, and as many as the budget
  // allows to be registered. Others are not registered: a kernel may touch a large file anywhere.
  // Each takes about 120 bytes.
  static constexpr std::size_t known_min = 65'536;
  std::size_t known_count() const { return known_->load(std::memory_order_relaxed); }

  // Unregisters what nobody can load from any more: of versions that have been replaced and have no
  // open file, and what nobody was told of. Only while no kernel runs, where
  // device::unregistering_waits().
  void give_back_unreachable();
  // Whether an extent was refused because of the budget, or forgotten as too many are remembered,
  // since the last give_back_unreachable().
  bool lacks_budget() const { return lacks_budget_.load(std::memory_order_relaxed); }

  // Unregisters everything. Only while no kernel runs, and no other call of this class.
  void drop_all();
  // Asks the thread to end, and does not wait for it.
  void ask_to_end();
  // Ends the thread. False when it has not ended by the deadline, because it hangs in a backend:
  // then it is left behind, and what it uses must stay.
  [[nodiscard]] bool stop(const deadline& end);

  struct counts {
    std::uint64_t registered, bytes, refused;
  };
  counts count() const { return {registered_.load(), bytes_.load(), refused_.load()}; }
  static std::uint64_t registered_in(file_version& version);

 private:
  static constexpr std::uint32_t retry_reads = 1024;
  static constexpr std::uint32_t looks_every =
      16;  // reads of what is known to be refused, by each thread
  static constexpr double cached_min = 0.95;
  static constexpr std::uint64_t quiet_ns = 20'000'000;
  // How long to wait for a file that is read ahead: as long as more of it comes, and in all.
  static constexpr std::uint64_t stalled_time_ns = 1'000'000'000, cold_time_ns = 5'000'000'000;

  struct job {
    std::shared_ptr<host_file> file;
    std::uint64_t number;
  };

  // Holds no file open: many may be closed before it is quiet.
  struct deferred_job {
    std::weak_ptr<host_file> file;
    std::shared_ptr<file_version> version;
    std::uint64_t number;
  };

  extent_hint note(const std::shared_ptr<host_file>& file, std::uint64_t number, std::uint64_t& end,
                   urgency when);
  void run();
  void refuse(const job& j);
  static bool still_wanted(const deferred_job& j, bool is_open);
  // The set's extent, which is made if need be; null where too many are remembered. The set is
  // locked.
  extent_set::extent* remember(extent_set& set, std::uint64_t number);
  // The next job, or none when the thread is to end. Waits.
  std::optional<job> next_job();
  // Bytes registered, also when they were before; 0 when refused.
  std::uint64_t register_one(const job& j);
  bool take_budget(std::uint64_t bytes);
  void unregister(std::unique_ptr<file_mapping>& mapping);
  bool bring_into_cache(backend_file& file, const file_mapping& mapping, std::uint64_t offset);
  // Maps and registers. An empty notice when it cannot be; `mapping` is set if something was
  // registered all the same.
  extent_hint prepare(const job& j, std::unique_ptr<file_mapping>& mapping);

  device& device_;
  file_table& files_;
  timeline& timeline_;
  const extent_options options_;
  // Relaxed: a number, by which nothing else becomes known.
  const std::shared_ptr<std::atomic<std::size_t>> known_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  std::atomic<std::uint64_t> registered_{0}, bytes_{0}, refused_{0};
  // Names of extents that were refused, at their place by hash: most reads of them do without their
  // set's mutex, at which all workers would meet. Only hints, relaxed: a wrong one delays a look.
  std::array<std::atomic<std::uint64_t>, 4096> known_refused_{};
  std::mutex mutex_;  // guards jobs_ and stopping_
  std::condition_variable wake_;
  std::deque<job> jobs_;
  std::deque<deferred_job> deferred_;            // guarded by mutex_
  std::atomic<std::uint64_t> last_deferred_{0};  // when; relaxed, a hint
  std::vector<std::shared_ptr<extent_set>>
      sets_;  // those that have registered extents; guarded by mutex_
  std::atomic<bool> lacks_budget_{false};
  std::atomic<bool> stopping_{false};
  host_threads thread_;
};

}  // namespace gpufs

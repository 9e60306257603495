// The service: thread pools that answer the channel's requests (models/channel.pml).
//
// Threads. There are three pools, one for each service_duty, and one supervisor:
//   - Openers open files for reading and close them.
//   - Copiers answer bulk requests.
//   - Workers answer all other requests.
//   - The supervisor updates the heartbeat and watches the copiers' driver calls (driver_gate.hpp).
//
// All pool threads run the same loop, work(). A thread scans the bells and skips requests for
// another pool. It claims a request by a compare-and-swap on the slot's word in `served_`, which is
// host memory, so exactly one thread answers each request. Then it writes the reply. The owner of
// this object calls the constructor, stop() and the destructor; any thread may call ask_to_end(),
// wake(), wake_all() and served_count().
//
// Locks. `supervisor_mutex_` guards `entered_`, and the store to `stopping_` that
// `supervisor_wake_` waits for. All other shared state is atomic.
//
// Sleep. After `spin_ns` without work, all threads of a pool except one sleep until they are woken.
// The one left, the sentinel, polls the bells at growing intervals, because a GPU cannot wake a
// host thread. Each pool sleeps and wakes by itself, so requests for one pool do not keep another
// awake. A thread that sees a request for a pool whose threads all sleep wakes one of them; so does
// another pool's sentinel. After a long idle time, one sentinel therefore polls for all pools.
//
// Openers are a separate pool because of descriptors. All threads of a process open and close files
// under one kernel lock, unless a thread has its own descriptor table. An opener can have one
// (backend::enter_opener), because it uses no other descriptors. Workers open files for writing,
// and a program's own backend may expect the process's descriptors in them. With so few threads
// that the lock does not matter, there are no openers, and workers open and close files too
// (service_options).
//
// Copiers are a separate pool because a driver call may return only when a kernel ends, and that
// kernel may wait for a worker. There must be at least two copiers: while one is in the driver,
// another refuses requests.
//
// A worker skips a write to a file while enough other workers write that file (write_permits.hpp).
//
// The sink's thread answers a send request (sinks.hpp). All sink threads must end before the
// channel is destroyed.
//
// A thread that dies (an exception that is not a result) first answers its request with -EIO. When
// the last thread of any pool has died, the channel's phase becomes `dead`, and every wait ends.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/host_threads.hpp"
#include "gpufs/channel/layout.cuh"
#include "service/file_table.hpp"
#include "service/request_server.hpp"
#include "service/sinks.hpp"
#include "service/timeline.hpp"

namespace gpufs {

// A fault-injecting backend throws this to end the calling thread. No other code may throw it.
struct worker_death {};

struct service_options {
  unsigned workers = 1;
  std::uint64_t spin_ns = 0;
  bool openers = true;   // true: as many openers as workers; false: workers open and close files
  unsigned copiers = 0;  // 0: no bulk requests exist; workers refuse forged ones
};

class service {
 public:
  // `device_view`: the channel at its device addresses. Waits until the openers have started, for
  // at most `answer_time_ns`. Throws gpufs::error EAGAIN when a thread cannot be created.
  service(device& d, const channel_view& channel, const channel_view& device_view,
          const bulk_frames& frames, file_table& files, extent_registrar& extents,
          sink_table& sinks, timeline& events, const service_options& options);
  // Waits for the threads without a deadline, unless stop() was called. Afterwards the owner calls
  // file_table::close_handed(), to close descriptors that the threads left for other threads to
  // close.
  ~service();
  service(const service&) = delete;
  service& operator=(const service&) = delete;

  // Asks all threads to end. Does not wait.
  void ask_to_end();
  // Ends all threads. A caller that waits for an unanswered request then sees `dead`. Returns false
  // when a thread has not ended by the deadline, because it hangs in a backend or in the driver.
  // That thread is detached, and everything it uses must stay alive.
  [[nodiscard]] bool stop(const deadline& end);
  [[nodiscard]] bool stop(std::uint64_t timeout_ns) { return stop(deadline::after(timeout_ns)); }
  // Announces that requests will come soon: wakes a worker and an opener, except where the pool's
  // sentinel polls again within microseconds. Thread-safe and cheap.
  void wake();
  void wake_all();
  std::uint64_t served_count() const;

 private:
  // A bell with an unanswered request. It is not claimed: the first thread to claim it answers it.
  struct pending_request {
    std::uint32_t slot, seen, sequence;
  };

  // The threads of one duty. Aligned so that each pool has its own cache lines.
  struct alignas(64) thread_pool {
    explicit thread_pool(unsigned threads) : alive(threads) {}
    std::atomic<unsigned> alive;
    std::atomic<bool> sentinel{false};
    std::atomic<bool> called{false};      // a wake-up was sent, and no thread has woken since
    std::atomic<bool> looks_soon{false};  // the sentinel sleeps only for nap_ns
  };

  // The loop of one pool thread. `worker`: the thread's number in its pool.
  void work(service_duty duty, unsigned worker);
  void wait_for_openers();
  void supervise();
  // Numbers of unclaimed requests, indexed by service_duty.
  using pending_requests = std::array<unsigned, service_duties>;
  pending_requests pending() const;
  void report_waiting_for_copiers();
  // The pool that answers the request. Workers replace a pool that has no threads.
  service_duty duty_for(request_code code) const { return answered_by(duty_of(code)); }
  service_duty answered_by(service_duty duty) const {
    return threads_of(duty) != 0 ? duty : service_duty::work;
  }
  unsigned threads_of(service_duty duty) const {
    return duty == service_duty::work   ? options_.workers
           : duty == service_duty::open ? (options_.openers ? options_.workers : 0)
                                        : options_.copiers;
  }
  unsigned most_threads() const { return std::max(options_.workers, options_.copiers); }
  // The result of one scan. `busy` is the node_name() of one skipped write.
  struct tally {
    unsigned answered = 0;
    unsigned written = 0;      // writes among `answered`
    unsigned passed_over = 0;  // skipped writes to files that other threads write, and syncs
    std::uint64_t busy = 0;
  };
  tally scan(service_duty duty, unsigned worker, bool everywhere, file_table::lookups& known);
  void scan_range(service_duty duty, std::uint32_t first, std::uint32_t last, unsigned worker,
                  file_table::lookups& known, tally& done);
  bool look(service_duty duty, const pending_request& bell, request& r, file_table::lookups& known);
  void call(service_duty duty);
  void call_anyone(service_duty duty);
  struct idle_end {
    bool pending;  // an unclaimed request for this pool exists
    bool woken;
  };
  // Sleeps for a time that grows with `idle_ns`, or until woken.
  idle_end idle(service_duty duty, std::uint64_t idle_ns);
  bool rung(std::uint32_t slot, pending_request& bell) const;
  bool begin(std::uint32_t slot, std::uint32_t sequence, const request& r) const;
  // `duty`, `worker`: the calling thread. Called after the thread has claimed the request.
  // `place`: for a sync; see sync_rounds::add().
  void answer(service_duty duty, std::uint32_t slot, std::uint32_t sequence, const request& r,
              unsigned worker, file_table::lookups& known, std::shared_ptr<void> place);
  void store_reply(std::uint32_t slot, std::uint32_t sequence, const request& r,
                   std::optional<timeline_event> event, std::int32_t result, bool of_open);
  std::int32_t serve(service_duty duty, std::uint32_t slot, std::uint32_t sequence,
                     const request& r, unsigned worker, file_table::lookups& known,
                     request_server::opened_file& opened);
  bool make_closes(service_duty duty, std::uint32_t node, unsigned worker,
                   file_table::lookups& known);
  bool wait_for_withdrawn(std::uint32_t slot, std::uint32_t sequence, std::uint32_t node);
  void close_withdrawn(std::uint32_t slot, std::uint32_t sequence, std::uint64_t handle);
  int hand_to_sink(std::uint32_t slot, std::uint32_t sequence, const request& r,
                   const std::optional<timeline_event>& event);
  timeline_event describe(service_duty duty, const request& r, std::uint32_t slot,
                          unsigned worker) const;
  static bool is_for_rounds(request_code code) {
    return code == request_code::sync || code == request_code::report_close;
  }
  std::shared_ptr<void> take_sync_place();
  bool take_permit(const request& write, unsigned worker, const file_table::lookups& known,
                   write_permit& permit) const;
  // The futex words on which this pool sleeps. The pool comes from `options_`, never from the
  // channel header, because a kernel may have overwritten the header.
  channel_header::sleep_words& sleep_of(service_duty duty) const {
    return channel_.header().sleep[place_of(answered_by(duty))];
  }
  void wake_sleepers(service_duty duty, int count);
  std::uint32_t sleepers(service_duty duty) const;
  static constexpr std::size_t place_of(service_duty duty) {
    return static_cast<std::size_t>(duty);
  }
  thread_pool& pool_of(service_duty duty) { return pools_[place_of(duty)]; }

  const channel_view channel_;
  file_table& files_;
  sink_table& sinks_;
  timeline& timeline_;
  const service_options options_;
  std::atomic<unsigned> syncing_{0};  // threads that sync; see take_sync_place()
  // Per slot: the sequence of the last request that a thread claimed.
  std::vector<std::atomic<std::uint32_t>> served_;
  // One entry for each worker, then each opener, then each copier. Each entry has its own cache
  // line, because every thread counts every request.
  struct alignas(64) worker_count {
    std::atomic<std::uint64_t> served{0};
    // The requests among `served` that the device answers. Only the thread itself uses it.
    std::uint64_t by_device = 0;
  };
  worker_count& count_of(service_duty duty, unsigned worker) {
    return counts_[place_of(duty) * most_threads() + worker];
  }
  std::vector<worker_count> counts_;
  std::atomic<bool> stopping_{false};
  request_server requests_;
  std::array<thread_pool, service_duties> pools_;  // indexed by service_duty
  std::atomic<bool> long_idle_sentinel_{false};    // one sentinel polls for all pools
  std::mutex supervisor_mutex_;
  std::condition_variable supervisor_wake_;
  unsigned entered_ = 0;     // openers that have started; guarded by supervisor_mutex_
  bool is_stopped_ = false;  // used by the owner's thread only
  host_threads threads_;
};

}  // namespace gpufs

// The service: worker threads that answer the channel's requests (models/channel.pml).
//
// Threads. Openers answer requests to open and close files to read, copiers bulk requests, workers
// all others. All do the same rounds: they scan the bells, pass over what is for another kind,
// claim a request by compare-and-swap on the host's own `served_` word of its slot, so that exactly
// one thread answers it, and write the reply. A supervisor beats the heart, and watches the
// copiers' calls of the driver (driver_gate.hpp). Threads of a kind that is idle sleep: after
// `spin_ns` without work all but one wait to be woken; that one, the sentinel, looks at the bells
// now and then, at growing intervals, because a GPU cannot wake a host thread. Each kind sleeps and
// wakes by itself, so that requests for the one do not keep the other awake; but who sees a request
// for a kind that sleeps altogether wakes one of that kind: a thread that passes over it, or
// another kind's sentinel. So when all have been idle for long, one sentinel is enough for all.
//
// Openers are a kind of their own because of descriptors: all threads of a process open and close
// files under one lock of the kernel, unless they have descriptor tables of their own. Openers may
// (backend::enter_opener), as they do nothing else that needs descriptors. Workers call the driver
// and the program's own functions, which expect the program's descriptors. Where there are so few
// threads that the lock does not matter there are no openers, and workers do their work
// (service_options).
//
// Copiers are a kind of their own because a call of the driver may return only when a kernel ends,
// which may itself wait for a worker. There are two at least: one refuses requests while the other
// is in the driver.
//
// A write to a file that two other workers are writing, or six, is passed over, and left to them
// (write_turn.hpp).
//
// Requests to send are answered by the thread of the sink (sinks.hpp), which must end before the
// channel does.
//
// A thread that dies (an exception that is not an answer) answers the request it holds with -EIO;
// when the last one of either kind is gone the channel says `dead`, and every waiter ends.
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

// Thrown by a fault-injecting backend to end the worker thread that called it. Nothing else may.
struct worker_death {};

struct service_options {
  unsigned workers = 1;
  std::uint64_t spin_ns = 0;
  bool openers = true;   // as many as workers; false: none, and workers open and close files too
  unsigned copiers = 0;  // 0: there are no bulk requests but made-up ones, which workers refuse
};

class service {
 public:
  // `seen`: the channel as the device addresses it. Throws gpufs::error EAGAIN when a thread cannot
  // be made.
  service(device& d, const channel_view& channel, const channel_view& seen,
          const bulk_frames& frames, file_table& files, extent_registrar& extents,
          sink_table& sinks, timeline& record, const service_options& options);
  // Waits for the threads without a deadline, unless stop() was called. What they left to each
  // other to close is for the owner: file_table::close_handed().
  ~service();
  service(const service&) = delete;
  service& operator=(const service&) = delete;

  // Asks all threads to end, and does not wait for them.
  void ask_to_end();
  // Ends all threads; waiters of requests that are not answered yet see `dead`. False when a thread
  // has not ended by the deadline, because it hangs in a backend or a sink: then it is left behind,
  // and what it uses must stay.
  [[nodiscard]] bool stop(const deadline& end);
  [[nodiscard]] bool stop(std::uint64_t timeout_ns) { return stop(deadline::after(timeout_ns)); }
  // Work is to be expected: a thread of each kind looks at the bells, unless one is to look within
  // microseconds anyway. Thread-safe, cheap.
  void wake();
  void wake_all();
  std::uint64_t served_count() const;

 private:
  // A bell that was new to a worker: not claimed yet, so that whoever is first may serve it.
  struct pending_request {
    std::uint32_t slot, seen, sequence;
  };

  // The threads of one kind. Each in lines of its own.
  struct alignas(64) thread_pool {
    explicit thread_pool(unsigned threads) : alive(threads) {}
    std::atomic<unsigned> alive;
    std::atomic<bool> sentinel{false};
    std::atomic<bool> called{false};      // by another kind, and nobody has got up since
    std::atomic<bool> looks_soon{false};  // the sentinel's sleep is a short one
  };

  // `worker`: a thread's number within its kind.
  void work(service_duty duty, unsigned worker);
  void wait_for_openers();
  void supervise();
  // Requests that nobody has taken, by service_duty.
  using pending_requests = std::array<unsigned, service_duties>;
  pending_requests pending() const;
  void report_waiting_for_copiers();
  // Whose request it is.
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
  // What a scan came to.
  struct tally {
    unsigned answered = 0;
    unsigned written = 0;      // of these
    unsigned passed_over = 0;  // writes to files that other threads are writing
    std::uint64_t busy = 0;    // the name of one's node
  };
  tally scan(service_duty duty, unsigned worker, bool everywhere, file_table::lookups& known);
  void scan_range(service_duty duty, std::uint32_t first, std::uint32_t last, unsigned worker,
                  file_table::lookups& known, tally& done);
  bool look(service_duty duty, const pending_request& bell, request& r, file_table::lookups& known);
  void call(service_duty duty);
  void call_anyone(service_duty duty);
  struct idle_end {
    bool pending;  // there is a request for threads of this kind
    bool woken;
  };
  // Sleeps for a while.
  idle_end idle(service_duty duty, std::uint64_t idle_ns);
  bool rung(std::uint32_t slot, pending_request& bell) const;
  bool begin(std::uint32_t slot, std::uint32_t sequence, const request& r) const;
  // `duty`, `worker`: the calling thread.
  void answer(service_duty duty, std::uint32_t slot, std::uint32_t sequence, const request& r,
              unsigned worker, file_table::lookups& known);
  std::int32_t serve(service_duty duty, std::uint32_t slot, std::uint32_t sequence,
                     const request& r, unsigned worker, file_table::lookups& known,
                     request_server::opened_file& opened);
  bool make_closes(service_duty duty, std::uint32_t node, unsigned worker,
                   file_table::lookups& known);
  void close_withdrawn(std::uint32_t slot, std::uint32_t sequence, std::uint64_t handle);
  int hand_to_sink(std::uint32_t slot, std::uint32_t sequence, const request& r,
                   const std::optional<timeline_event>& event);
  timeline_event describe(service_duty duty, const request& r, std::uint32_t slot,
                          unsigned worker) const;
  bool take_turn(const request& write, unsigned worker, const file_table::lookups& known,
                 write_turn& turn) const;
  // Where threads of this kind sleep. Not by what the channel says of it: a kernel may have written
  // there.
  channel_header::cpu_bed& bed(service_duty duty) const {
    return channel_.header().beds[place_of(answered_by(duty))];
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
  std::vector<std::atomic<std::uint32_t>>
      served_;  // per slot: sequence of the last request that a worker took
  // Of each worker, then of each opener and each copier, in a line of its own: all count at each
  // request.
  struct alignas(64) worker_count {
    std::atomic<std::uint64_t> served{0};
    std::uint64_t by_device =
        0;  // of these: handed to the device, which answers them; the thread's own
  };
  worker_count& count_of(service_duty duty, unsigned worker) {
    return counts_[place_of(duty) * most_threads() + worker];
  }
  std::vector<worker_count> counts_;
  std::atomic<bool> stopping_{false};
  request_server requests_;
  std::array<thread_pool, service_duties> pools_;  // by service_duty
  std::atomic<bool> long_idle_sentinel_{false};    // the one for all kinds is there
  std::mutex supervisor_mutex_;
  std::condition_variable supervisor_wake_;
  unsigned entered_ = 0;     // openers that have begun; guarded by supervisor_mutex_
  bool is_stopped_ = false;  // the owner's
  host_threads threads_;
};

}  // namespace gpufs

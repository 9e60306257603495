/**
 * The streams of a simulated GPU, as one process uses them, and events.
 *
 * Calls return CUDA's errors. Thread-safe.
 */
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "simulated/stream.hpp"

namespace gdev::simulated {

/** Work that was in a stream when the event was recorded. */
struct event {
  std::mutex mutex;  // guards all below
  stream* recorded_in = nullptr;
  std::uint64_t ticket = 0;
  std::shared_ptr<std::uint64_t> at_ns;  // when it was reached
  std::shared_ptr<void> captured;        // the capture in which it was recorded
  CUcontext context = nullptr;           // that ends it
};

/** Returns an event. Ends the process if its context has ended, or if it is null: that is a fault
 * of the caller, which a vendor's driver need not see. */
event& live(CUevent handle) noexcept;
/** The context has ended, and all events with it. */
void end_events_of(CUcontext ended);

class device_streams {
 public:
  device_streams() = default;
  device_streams(const device_streams&) = delete;
  device_streams& operator=(const device_streams&) = delete;

  CUresult create_stream(CUstream* made, bool is_blocking);
  CUresult destroy_stream(CUstream ended);
  /** Queues work, after what CUDA's default streams say. */
  void submit(CUstream where, bool is_per_thread, std::function<void()> work);
  void wait(CUstream where, bool is_per_thread);
  [[nodiscard]] bool is_idle(CUstream where, bool is_per_thread);
  void wait_for_all();

  /** For pthread_atfork(). In a child, streams that a program has made have no thread. */
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  [[nodiscard]] std::uint64_t number_of(CUstream where, bool is_per_thread);

  void record(event& which, CUstream where, bool is_per_thread);
  /** Records all work of this process. */
  void record_all(event& which);
  /** Makes a stream wait for an event. */
  void wait_in(CUstream where, bool is_per_thread, event& which);

 protected:
  ~device_streams() = default;

 private:
  stream& find(CUstream where, bool is_per_thread);
  /** Returns all streams, with the last work in each. */
  [[nodiscard]] std::vector<std::pair<stream*, std::uint64_t>> all_work();

  std::mutex mutex_;  // guards all below
  stream default_stream_;
  stream watcher_;              // of record_all()
  std::set<stream*> blocking_;  // these wait for the default stream, and it for them
  std::set<stream*> non_blocking_;
};

}  // namespace gdev::simulated

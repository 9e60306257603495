/**
 * The work of a handle: a stream, and the ids of what was submitted to it.
 *
 * Ids count from 1, in the order of the stream. An event follows each piece of work with an id. It
 * is kept until it is known to have happened. Thread-safe. The handle's context is current in all
 * calls.
 *
 * Locks, in their order: `order_`, `pending_mutex_`. A submission may wait for the program's turn
 * in the driver, and holds `order_` meanwhile; waits for work hold neither.
 */
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "calls/driver.hpp"

namespace gdev::calls {

class submissions {
 public:
  /** Makes the stream. Returns 0 or a negative errno. */
  [[nodiscard]] int begin() noexcept;
  /** Waits for all work and destroys the stream. Returns -EIO if work has failed. */
  int end() noexcept;

  /**
   * Calls work(stream), which returns a CUresult. Stores the id unless `id` is null. After an error
   * nothing of it runs.
   */
  template <typename Work>
  int submit(std::uint64_t* id, Work&& work) noexcept {
    const std::lock_guard lock(order_);
    event_pointer made;
    if (id != nullptr) {
      if (const int error = make_event(made); error != 0) {
        return error;
      }
    }
    int error = error_of(work(stream_));
    if (error == 0 && id != nullptr) {
      error = record(std::move(made), *id);
    }
    if (error != 0) {
      // A part may run. The caller may free its buffers, and has no id to wait for.
      static_cast<void>(driver().cuStreamSynchronize(stream_));
    }
    return error;
  }

  /** Waits for all work. */
  [[nodiscard]] int wait_for_all() noexcept;
  /** Waits for one piece of work, as gsync(). */
  [[nodiscard]] int wait_for(std::uint64_t id, std::int64_t timeout_ns) noexcept;

 private:
  struct destroy_event {
    void operator()(CUevent which) const noexcept {
      static_cast<void>(driver().cuEventDestroy(which));
    }
  };
  using event_pointer = std::shared_ptr<CUevent_st>;
  struct work {
    std::uint64_t id = 0;
    event_pointer end;
  };

  static int make_event(event_pointer& made) noexcept;
  int record(event_pointer end, std::uint64_t& id) noexcept;

  CUstream stream_ = nullptr;
  std::mutex order_;          // guards the order of the stream and of ids
  std::mutex pending_mutex_;  // guards all below
  std::uint64_t last_id_ = 0;
  std::deque<work> pending_;  // by their ids; what is missing has ended
};

}  // namespace gdev::calls

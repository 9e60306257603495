// The calls that tell whether written bytes of one file are lost: syncs, and reports of closes
// (backend_file::report_close()). When bytes cannot be written, Linux marks their pages as clean,
// and reports the error once to each descriptor that was open by then. So
//   - callers may share a call only if they make it through the same descriptor: a descriptor that
//     was opened later may not be told. Callers that come while a call runs share the next one of
//     their kind and descriptor, a *round*.
//   - two calls never run at a time: the second might return 0 while the first is told that the
//     second's bytes are lost. (On Linux this needs one descriptor; a backend may report an error
//     once for the file.)
//   - the error of the first failed round is remembered, until the last descriptor that writes the
//     file is closed. Until then every sync and close of the file returns it: others may have lost
//     bytes, too.
#pragma once

#include <errno.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

namespace gpufs {

// Thread-safe. Service threads call run(). `mutex_` guards all members; it is not held during a
// call.
class sync_rounds {
 public:
  enum class kind { sync, close, close_if_written };

  // Makes `call`, or waits for another caller's `call` of the same `descriptor` and kind that
  // begins after this one. Rounds run in the order of their first callers. Returns the round's
  // result, 0 or -errno. An exception of `call` leaves the run() that made it; the other callers of
  // the round get -EIO. `descriptor`: the object that `call` uses. The caller keeps it meanwhile.
  template <class Call>
  int run(kind what, const void* descriptor, const Call& call) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<round> own = round_of(what, descriptor);
    changed_.wait(lock, [&] { return own->is_done || (!is_running_ && waiting_.front() == own); });
    if (!own->is_done) {
      is_running_ = true;
      waiting_.pop_front();
      lock.unlock();
      int status = -EIO;
      const auto end = [&] {
        lock.lock();
        own->status = status;
        own->is_done = true;
        is_running_ = false;
        if (error_ == 0) error_ = std::min(status, 0);
        changed_.notify_all();
      };
      try {
        status = call();
      } catch (...) {
        end();
        throw;
      }
      end();
    }
    return own->status;
  }
  // The error of the first failed round, or 0.
  int error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Whether run() would wait for other callers.
  bool is_busy() {
    const std::lock_guard lock(mutex_);
    return is_running_ || !waiting_.empty();
  }

 private:
  struct round {
    const kind what;
    const void* const descriptor;
    bool is_done = false;
    int status = 0;
  };
  // The round that has not begun.
  std::shared_ptr<round> round_of(kind what, const void* descriptor) {
    for (const std::shared_ptr<round>& one : waiting_) {
      if (one->what == what && one->descriptor == descriptor) return one;
    }
    return waiting_.emplace_back(std::make_shared<round>(what, descriptor));
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<round>> waiting_;  // not begun, each with a caller that waits for it
  bool is_running_ = false;
  int error_ = 0;
};

}  // namespace gpufs

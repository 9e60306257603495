// Syncs of one file. When bytes cannot be written, Linux marks their pages as clean, and reports
// the error once to each descriptor that was open by then. So
//   - callers may share a sync only if they sync through the same descriptor: a descriptor that was
//     opened later may not be told. Callers that come while a sync runs share the next sync of
//     their descriptor, a *round*.
//   - two syncs never run at a time: the second might return 0 while the first is told that the
//     second's bytes are lost. (On Linux this needs one descriptor; a backend may report an error
//     once for the file.)
//   - a failed round is remembered: later rounds return its error, until the last descriptor that
//     writes the file is closed.
#pragma once

#include <errno.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

namespace gpufs {

// Thread-safe. Service threads call run(). `mutex_` guards all members; it is not held during a
// sync.
class sync_rounds {
 public:
  // Calls `sync`, or waits for another caller's `sync` of the same `descriptor` that begins after
  // this call. Rounds run in the order of their first callers. Returns 0 or -errno: the error of
  // the round, or of an earlier round with the same `closings` (inode_state). An exception of
  // `sync` leaves the call that made it; the other callers of the round get -EIO.
  // `descriptor`: the object that `sync` syncs through. The caller keeps it meanwhile.
  template <class Sync>
  int run(std::uint32_t closings, const void* descriptor, const Sync& sync) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<round> own = round_of(descriptor);
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
        if (status < 0 && (error_ == 0 || closings_ != closings)) {
          error_ = status;
          closings_ = closings;
        }
        changed_.notify_all();
      };
      try {
        status = sync();
      } catch (...) {
        end();
        throw;
      }
      end();
    }
    if (own->status < 0) return own->status;
    return closings_ == closings ? error_ : 0;
  }

 private:
  struct round {
    const void* descriptor;
    bool is_done = false;
    int status = 0;
  };
  // The round of `descriptor` that has not begun.
  std::shared_ptr<round> round_of(const void* descriptor) {
    for (const std::shared_ptr<round>& one : waiting_) {
      if (one->descriptor == descriptor) return one;
    }
    return waiting_.emplace_back(std::make_shared<round>(descriptor));
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<round>> waiting_;  // not begun, each with a caller that waits for it
  bool is_running_ = false;
  int error_ = 0;  // of the first failed round; 0: none
  std::uint32_t closings_ = 0;
};

}  // namespace gpufs

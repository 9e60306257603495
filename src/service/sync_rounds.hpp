// Syncs of one file. When a sync fails, Linux returns the error to one caller and marks the pages
// as clean. A sync of another caller then returns 0, although its bytes are lost too. So only one
// sync of a file runs at a time, as a round: callers that come while it runs share the next round.
// A failed round is remembered: later rounds return its error, until the last descriptor that
// writes the file is closed.
#pragma once

#include <errno.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace gpufs {

// Thread-safe. Service threads call run(). `mutex_` guards all members; it is not held during a
// sync.
class sync_rounds {
 public:
  // Calls `sync`, or waits for another caller's `sync` that begins after this call. Returns 0 or
  // -errno: the error of the round, or of an earlier round with the same `closings` (inode_state).
  // An exception of `sync` leaves the call that made it; the other callers of the round get -EIO.
  template <class Sync>
  int run(std::uint32_t closings, const Sync& sync) {
    std::unique_lock lock(mutex_);
    if (next_ == nullptr) next_ = std::make_shared<round>();
    const std::shared_ptr<round> own = next_;
    changed_.wait(lock, [&] { return own->is_done || !is_running_; });
    if (!own->is_done) {
      is_running_ = true;
      next_ = nullptr;
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
    bool is_done = false;
    int status = 0;
  };
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::shared_ptr<round> next_;  // not begun; null while no caller waits for it
  bool is_running_ = false;
  int error_ = 0;  // of the first failed round; 0: none
  std::uint32_t closings_ = 0;
};

}  // namespace gpufs

/**
 * Closes descriptors that came from clients, in a thread of its own.
 *
 * close() may wait for whoever serves the file: a FUSE file's server, a socket that lingers. A
 * client chooses the file, and the daemon must not wait for it.
 */
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/file_descriptor.hpp"

namespace gdev {

class closer {
 public:
  /** Starts the thread; signals that are blocked here are blocked there. Throws system_error. */
  closer();
  closer(const closer&) = delete;
  closer& operator=(const closer&) = delete;
  /** Does not wait for the thread: the end of the process closes what is left. */
  ~closer();

  /** Takes a descriptor, which is closed soon. Does not wait for that. */
  void close(file_descriptor file) noexcept;

  /** Tells whether so many wait to be closed that no more should be taken from clients. */
  [[nodiscard]] bool is_full() const noexcept;

 private:
  struct shared_state {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::vector<file_descriptor> waiting;
    std::size_t closing = 0;
    bool is_ended = false;
  };

  static void work(shared_state& state);

  std::shared_ptr<shared_state> state_;  // the thread may outlive this
};

}  // namespace gdev

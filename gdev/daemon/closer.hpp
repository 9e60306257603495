/**
 * Closes descriptors that came from clients, each in a thread of its own.
 *
 * close() may wait for whoever serves the file: a FUSE file's server, a socket that lingers. A
 * client chooses the file, and neither the daemon nor other files must wait for it.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "base/file_descriptor.hpp"

namespace gdev {

class closer {
 public:
  /**
   * Takes a descriptor, which is closed soon. Does not wait for that, unless the system has no
   * thread left. Signals that are blocked here are blocked in the thread.
   */
  void close(file_descriptor file) noexcept;

  /** Tells whether so many are being closed that no more should be taken from clients. */
  [[nodiscard]] bool is_full() const noexcept;

 private:
  // The threads may outlive this: the end of the process ends them.
  std::shared_ptr<std::atomic<std::size_t>> closing_ =
      std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace gdev

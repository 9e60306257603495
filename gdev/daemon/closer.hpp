/**
 * Closes descriptors that came from clients, each in a thread of its own.
 *
 * close() may wait for whoever serves the file: a FUSE file's server, a socket that lingers. A
 * client chooses the file, and neither the daemon nor other files must wait for it.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/file_descriptor.hpp"

namespace gdev {

class closer {
 public:
  /**
   * Takes a descriptor that came from a user, and is closed soon. Does not wait for that, unless
   * the system has no thread left. Signals that are blocked here are blocked in the thread.
   */
  void close(file_descriptor file, std::uint64_t user) noexcept;

  /** Tells whether so many of a user, or of all, are being closed that it may send no more. */
  [[nodiscard]] bool is_full(std::uint64_t user) const noexcept;

 private:
  /** How many are being closed. The threads may outlive this: the end of the process ends them. */
  using count = std::shared_ptr<std::atomic<std::size_t>>;

  class place;
  count of(std::uint64_t user);

  count all_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::map<std::uint64_t, count> of_users_;
};

}  // namespace gdev

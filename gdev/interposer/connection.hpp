/**
 * The connection of a client to the daemon: messages, and the descriptors that come with them.
 *
 * One thread at a time may use it; only is_hung_up() may be called by any.
 */
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>

#include "protocol/messages.hpp"

namespace gdev {

/** A descriptor of ours. A program may close descriptors that it does not know, and reuse them. */
class own_descriptor {
 public:
  /**
   * Takes a descriptor over, under a high number: programs expect low ones of their own files. The
   * number stays what it was: a thread that waits for the old file must not see a program's.
   */
  void take(int number) noexcept;
  /** Tells whether the number still is this file. */
  [[nodiscard]] bool is_there() const noexcept;
  [[nodiscard]] int number() const noexcept { return number_.load(std::memory_order_relaxed); }
  void close() noexcept;

 private:
  std::atomic<int> number_{-1};
  std::atomic<dev_t> device_ = 0;
  std::atomic<ino_t> inode_ = 0;
};

class daemon_connection {
 public:
  /** What may come with a message; -1: nothing. The caller closes them. */
  using descriptors = std::array<int, 2>;

  /** Connects to the socket of this path, within `answer_timeout`. Returns an errno. */
  [[nodiscard]] int open(const char* path) noexcept;
  void close() noexcept { socket_.close(); }
  [[nodiscard]] bool is_open() const noexcept { return socket_.is_there(); }
  /**
   * Sends a message, with the descriptor `sent` if it is one, and receives the answer, within
   * `answer_timeout`. Returns an errno, and closes the connection if it is not 0.
   */
  [[nodiscard]] int exchange(message& said, int sent, descriptors& received) noexcept;
  /** Tells whether the daemon has closed the connection. Waits for nothing. */
  [[nodiscard]] bool is_hung_up() const noexcept;

 private:
  own_descriptor socket_;
};

}  // namespace gdev

/** Streams of the simulated driver: each runs its work in order, in a thread of its own. */
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace gdev::simulated {

/** A queue of work. Thread-safe. Its destructor waits until all work is done. */
class stream {
 public:
  stream() = default;
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;
  ~stream();

  /** Queues work, which must not throw. Returns its ticket: tickets count from 1. */
  std::uint64_t submit(std::function<void()> work);

  /** Returns the ticket of the last work that was queued; 0 if none was. */
  [[nodiscard]] std::uint64_t submitted() const;

  [[nodiscard]] bool is_done(std::uint64_t ticket) const;

  /** Waits until the work of this ticket, and all before it, is done. */
  void wait(std::uint64_t ticket) const;

  /** For pthread_atfork(). A child has no thread of the stream: its work is over there. */
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

  /** Returns a number that no other stream of this process has or had. */
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

 private:
  void run();

  static std::uint64_t next_number() noexcept;

  const std::uint64_t number_ = next_number();
  mutable std::mutex mutex_;  // guards all below
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t submitted_ = 0;
  std::uint64_t done_ = 0;
  bool is_ending_ = false;
  std::thread thread_;  // started with the first work
};

}  // namespace gdev::simulated

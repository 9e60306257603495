/**
 * A client that is held: its memory is on the GPU, and its gate is closed but for the calls that
 * the daemon allows, round by round. So the processes of a job stop at one point of their work
 * before they leave their GPUs (daemon/jobs.cpp). For the turn service's thread.
 */
#pragma once

#include <cstdint>
#include <optional>

namespace gdev {

class hold {
 public:
  [[nodiscard]] bool is_on() const noexcept { return is_on_; }
  /** Tells whether the round goes on: step() must look again soon. */
  [[nodiscard]] bool is_busy() const noexcept { return is_on_ && !has_told_; }

  /** Closes the gate. */
  void begin() noexcept;
  /** Does what the daemon says now (client_page::hold), and tells it when that is done. */
  void step(std::uint32_t round);
  /** Opens the gate. */
  void end() noexcept;
  /** The client leaves the GPU: the gate stays closed, and lets nothing pass. */
  void end_closed() noexcept;

 private:
  /** Returns whether the round's calls have passed; or, if there are none, the GPU has finished. */
  [[nodiscard]] bool is_done(std::uint32_t calls);

  bool is_on_ = false;
  bool has_captured_ = false;  // calls of a capture were let pass
  bool has_told_ = false;
  std::optional<std::uint32_t> round_;  // that it saw last
};

}  // namespace gdev

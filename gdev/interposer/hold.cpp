#include "interposer/hold.hpp"

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/crash_point.hpp"
#include "interposer/client.hpp"
#include "interposer/gate.hpp"
#include "interposer/swappable_memory.hpp"
#include "protocol/account.hpp"
#include "protocol/messages.hpp"

namespace gdev {

namespace {

/** How long a look at the GPU takes at most: orders may change meanwhile. */
constexpr std::chrono::milliseconds look{1};
/** A capture submits nothing, and must not be held up: so many of its calls pass at each look. */
constexpr unsigned calls_of_captures = 1000;

}  // namespace

void hold::begin() noexcept {
  close_gate(all_queues);
  is_on_ = true;
  has_captured_ = false;
  round_.reset();
  has_told_ = false;
  set_side(turn_side::held);
}

bool hold::is_done(std::uint32_t calls) {
  const auto deadline = std::chrono::steady_clock::now() + look;
  if (has_captures()) {
    has_captured_ = true;
    let_pass(calls_of_captures);
    std::this_thread::sleep_until(deadline);
    return false;
  }
  if (std::exchange(has_captured_, false)) {
    let_pass(calls);  // instead of what the capture has left
  }
  if (calls != 0) {
    if (calls_left() != 0) {
      std::this_thread::sleep_until(deadline);
    }
    return calls_left() == 0 && wait_for_submissions(deadline);
  }
  return wait_for_submissions(deadline) && !has_captures() && swappable().drain(deadline);
}

void hold::step(std::uint32_t round) {
  const hold_round now = hold_round::unpacked(round);
  if (round_ != round) {
    round_ = round;
    has_told_ = false;
    let_pass(now.calls);
    crash_point("hold_round");
  }
  if (!has_told_ && is_done(now.calls)) {
    has_told_ = tell_turn(turn_event::held, now.number) != ENOTCONN;
    crash_point("held_told");
  }
}

void hold::end() noexcept {
  end_closed();
  set_side(turn_side::on);
  open_gate();
}

void hold::end_closed() noexcept {
  is_on_ = false;
  let_pass(0);
}

}  // namespace gdev

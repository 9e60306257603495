#include "interposer/turn_service.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>

#include "base/crash_point.hpp"
#include "base/environment.hpp"
#include "base/own_thread.hpp"
#include "interposer/client.hpp"
#include "interposer/connection.hpp"
#include "interposer/gate.hpp"
#include "interposer/hold.hpp"
#include "interposer/notices.hpp"
#include "interposer/observed.hpp"
#include "interposer/swappable_memory.hpp"
#include "protocol/account.hpp"

namespace gdev {

namespace {

using steady_clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/** How long the GPU has to finish before the gate opens again; twice as long each time. */
constexpr milliseconds first_patience{1000};
constexpr milliseconds longest_patience{64'000};
/** How long the gate is open then. */
constexpr milliseconds open_between{20};
/** A client that has submitted nothing for so long is idle. */
constexpr milliseconds idle_after{40};
/** How often a client without a daemon looks for one. */
constexpr milliseconds look_for_daemon{500};
/** How often a client that waits for room reports the GPU: others free it without a message. */
constexpr milliseconds report_interval{1000};
/** How long a client waits before it asks a full GPU again. */
constexpr milliseconds full_pause{10};
/** How long a client without a daemon waits on a full GPU, with a part of its memory there. */
constexpr milliseconds alone_patience{500};
/** Most of a random pause before it tries again; twice as long each time. */
constexpr milliseconds first_pause_alone{1000};
constexpr milliseconds longest_pause_alone{16'000};
/** Progress is told in steps of so many bytes. */
constexpr std::uint64_t progress_bytes = std::uint64_t{256} << 20;

own_descriptor wake_file;  // an eventfd; never closed but by a forked child
std::atomic<bool> is_started = false;

bool stops_without_daemon() noexcept {
  return std::string_view(variable("GDEV_ON_DAEMON_LOSS")) == "stop";
}

std::uint64_t all_submissions() noexcept {
  return count_submissions(work::launch) + count_submissions(work::fill) +
         count_submissions(work::to_device) + count_submissions(work::to_host) +
         count_submissions(work::other);
}

/** The thread's state. */
class turn_service {
 public:
  void run() {
    for (;;) {
      wait();
      note_signal();
      if (is_off_) {
        step_off();
      } else {
        step_on();
      }
    }
  }

 private:
  /** Waits until something happens, or it is time to look. */
  void wait() {
    milliseconds most{-1};
    if (!has_daemon()) {
      const auto left = std::chrono::ceil<milliseconds>(alone_again_ - steady_clock::now());
      most = left > milliseconds{0} ? std::min(left, look_for_daemon) : look_for_daemon;
    } else if (!is_off_ && may_leave_soon()) {
      most = is_contended() ? idle_after : most;
      most = is_unprepared() ? milliseconds{0} : most;
    } else if (is_off_ && has_waiting_submissions()) {
      most = report_interval;
    }
    if (!is_off_ && hold_.is_on()) {
      most = hold_.is_busy() ? milliseconds{0} : report_interval;  // a look sleeps itself
    }
    if (retry_at_ != steady_clock::time_point{}) {
      const auto left = std::chrono::ceil<milliseconds>(retry_at_ - steady_clock::now());
      most = std::max(left, milliseconds{0});
    }
    std::array<pollfd, 2> files{pollfd{wake_file.number(), POLLIN, 0},
                                pollfd{signal_file(), POLLIN, 0}};
    poll(files.data(), files.size(), static_cast<int>(most.count()));
    std::uint64_t count = 0;
    static_cast<void>(!read(wake_file.number(), &count, sizeof count));
    if ((files[1].revents & POLLIN) != 0) {
      std::array<char, 64> text{};
      while (recv(files[1].fd, text.data(), text.size(), MSG_DONTWAIT) > 0) {
      }
    }
    if (!has_daemon() || (files[1].revents & (POLLHUP | POLLERR)) != 0) {
      find_daemon();
    } else {
      lost_at_ = {};
    }
    answer_question();
  }

  /** The daemon is gone: looks for a new one. */
  void find_daemon() {
    if (lost_at_ == steady_clock::time_point{}) {
      lost_at_ = steady_clock::now();
    } else {
      poll(nullptr, 0, static_cast<int>(look_for_daemon.count() / 10));
    }
    memory_facts unused;
    static_cast<void>(ask_memory(unused));  // comes back to a daemon if there is one
  }

  // --- On the GPU ---

  [[nodiscard]] static bool is_contended() noexcept {
    return (read_turn().order & order_contended) != 0;
  }
  [[nodiscard]] static bool may_leave_soon() noexcept {
    return (read_turn().order & (order_contended | order_prepare)) != 0;
  }
  [[nodiscard]] bool is_unprepared() const { return bytes_to_leave() > prepared_; }
  /** Returns what leaving would move, as far as the daemon knows. */
  [[nodiscard]] static std::uint64_t bytes_to_leave() {
    const std::uint64_t size = swappable().size();
    return size - std::min(size, read_turn().room);
  }

  /** Makes a part of the host's memory that leaving will need: the program runs meanwhile. */
  void prepare() {
    const std::uint64_t to_leave = bytes_to_leave();
    if (!swappable().prepare_host(read_turn().room)) {
      prepared_ = to_leave;  // or no more can be had: it is tried again when there is more to move
    }
  }

  void step_on() {
    const turn_words told = read_turn();
    // Without a daemon, programs on the GPU stay there, whatever it said last.
    if ((told.order & order_out) != 0 && has_daemon()) {
      if (steady_clock::now() >= retry_at_) {
        leave();
      }
      return;
    }
    retry_at_ = {};
    // Also if the daemon ended when it had just ordered this process off, with its job.
    const std::uint32_t holds = hold_.is_on() ? order_hold | order_out : order_hold;
    if ((told.order & holds) != 0 && !goes_alone()) {
      if (!hold_.is_on()) {
        hold_.begin();
      }
      hold_.step(told.hold);
      report_sometimes();  // a daemon that hangs is found only by a message
      return;
    }
    if (hold_.is_on()) {
      hold_.end();
      crash_point("hold_ended");
    }
    if (may_leave_soon() && is_unprepared()) {
      prepare();
    }
    if (!is_contended()) {
      seen_ = 0;
      return;
    }
    const std::uint64_t now = all_submissions();
    if (seen_ != 0 && now == seen_ - 1 && is_idle() && tell_turn(turn_event::leaves) == 0) {
      leave();
    }
    seen_ = now + 1;
  }

  /** Tells whether nothing runs on the GPU, and nothing is being submitted. */
  bool is_idle() {
    close_gate(all_queues);
    const bool is_idle =
        wait_for_submissions(steady_clock::now()) && !has_captures() && swappable().is_drained();
    open_gate();
    return is_idle;
  }

  void leave() {
    const bool was_held = hold_.is_on();
    set_side(turn_side::off);
    close_gate(all_queues);
    hold_.end_closed();
    crash_point("gate_closed");
    const steady_clock::time_point deadline = steady_clock::now() + patience_;
    const bool is_drained =
        wait_for_submissions(deadline) && !has_captures() && swappable().drain(deadline);
    int error = is_drained ? 0 : EBUSY;
    crash_point("drained");
    if (error == 0) {
      const move_result moved = move_out();
      error = moved.error;
      if (error == 0) {
        crash_point("moved_out");
        park_memory();
        is_off_ = true;
        has_asked_ = false;
        retry_at_ = {};
        patience_ = first_patience;
        tell_turn(turn_event::left, moved.bytes, moved.ns);
        crash_point("left_told");
        step_off();
        return;
      }
    }
    if (was_held) {
      hold_.begin();  // others of its job have left: the daemon says whether it goes on
    } else {
      // It goes on for a moment: what it waits for may be behind the gate.
      set_side(turn_side::on);
      open_gate();
    }
    tell_turn(turn_event::stays, static_cast<std::uint64_t>(error));
    crash_point("stays_told");
    retry_at_ = steady_clock::now() + open_between;
    patience_ = std::min(2 * patience_, longest_patience);
  }

  /** Moves out what the daemon does not let it keep on the GPU, and tells it how far it is. */
  static move_result move_out() {
    std::uint64_t told = ~std::uint64_t{0};
    return swappable().move_out(read_turn().room, [&told](std::uint64_t left) {
      if (told - left >= progress_bytes) {
        told = left;
        tell_turn(turn_event::released, left);
      }
    });
  }

  /** Tells whether there is no daemon for so long that this process goes on without one. */
  [[nodiscard]] bool goes_alone() const {
    return lost_at_ != steady_clock::time_point{} && !stops_without_daemon() &&
           steady_clock::now() - lost_at_ >= loss_patience;
  }

  // --- Off the GPU ---

  void step_off() {
    if ((read_turn().order & order_report) == 0) {
      retry_at_ = {};
    } else if (steady_clock::now() >= retry_at_) {
      // Others need what it has kept. Or the daemon is a new one; or it gave room and took it back
      // before this thread saw that.
      has_asked_ = false;
      give_up_more();
    }
    if ((read_turn().order & order_unfit) != 0) {
      say_unfit();
    }
    const bool is_lost = lost_at_ != steady_clock::time_point{};
    const bool has_order = !is_lost && (read_turn().order & order_out) == 0;
    if (has_order ||
        (goes_alone() && steady_clock::now() >= alone_again_ && has_waiting_submissions())) {
      enter();
    } else if (has_waiting_submissions() && !has_asked_) {
      has_asked_ = tell_turn(turn_event::waits) == 0;
      crash_point("waits_told");
      if (has_asked_ && (read_turn().order & order_out) == 0) {
        enter();
      }
    } else if (has_asked_ && !is_lost) {
      report_sometimes();
    } else if (goes_alone() && swappable().resident() != 0) {
      // Nobody can ask for what it has kept any more, and others may need it.
      unpark_memory();
      static_cast<void>(swappable().move_out(0, [](std::uint64_t) {}));
      park_memory();
    }
  }

  /** Moves out more of what it has kept on the GPU, if the daemon wants that. */
  void give_up_more() {
    unpark_memory();
    const move_result moved = move_out();
    park_memory();
    if (moved.error != 0) {
      // The host has no room for it. So it must be on the GPU again before others.
      tell_turn(turn_event::stays, static_cast<std::uint64_t>(moved.error), 1);
      retry_at_ = steady_clock::now() + first_patience;
      return;
    }
    retry_at_ = {};
    crash_point("more_moved_out");
    tell_turn(turn_event::left, moved.bytes, moved.ns);
  }

  /** Reports what is free on the GPU, unless it just did: the daemon's last report may be old. */
  void report_sometimes() {
    const steady_clock::time_point now = steady_clock::now();
    if (now - reported_at_ >= report_interval) {
      reported_at_ = now;
      swappable().report_gpu();
    }
  }

  /** Says once that this process cannot come back for now. */
  void say_unfit() {
    memory_facts facts;
    if (std::exchange(has_said_unfit_, true) || !ask_memory(facts)) {
      return;
    }
    say("is off the GPU and does not fit any more: it needs %.1f MiB, and there are %.1f MiB for "
        "it. It goes on when it fits (gdev gpu list, gdev vgpu list).",
        mebibytes(facts.own), mebibytes(facts.sure));
  }

  /**
   * The GPU has no room for all of this process, and there is no daemon that gives it in turn.
   *
   * Another process may wait for the same room, with a part of its own memory there. So each gives
   * back what it has, and tries again after a pause of its own.
   */
  void pause_alone() {
    memory_facts facts;
    if (!std::exchange(has_said_alone_, true) && ask_memory(facts)) {
      say("the daemon is gone, and the GPU has no room for the %.1f MiB of this process. It tries "
          "again until there is room, or a daemon (gdev vgpu list starts one).",
          mebibytes(facts.own));
    }
    std::uniform_int_distribution<milliseconds::rep> most(0, pause_alone_.count());
    alone_again_ = steady_clock::now() + milliseconds{most(chance_)};
    pause_alone_ = std::min(2 * pause_alone_, longest_pause_alone);
  }

  /** Moves everything in, as the daemon gives room. */
  void enter() {
    steady_clock::time_point progress_at = steady_clock::now();
    std::uint64_t progress = 0;
    refused_chunks refusals;
    const auto goes_on = [this] { return !has_daemon() || (read_turn().order & order_out) == 0; };
    unpark_memory();
    const std::uint64_t kept = swappable().resident();
    const move_result moved = swappable().move_in(
        [&](std::uint64_t bytes) {
          if (bytes != std::exchange(progress, bytes)) {
            progress_at = steady_clock::now();
            refusals.begin_again();
          }
          while (goes_on() && has_daemon() && read_turn().room < bytes) {
            wait_for_signal();
            refusals.begin_again();
          }
          return goes_on();
        },
        [&](std::uint64_t refused) {
          swappable().report_gpu([&] { return refusals.look(refused); });
          poll(nullptr, 0, static_cast<int>(full_pause.count()));
          return goes_on() && (has_daemon() || steady_clock::now() - progress_at < alone_patience);
        });
    bool is_in = moved.error == 0;
    if (is_in) {
      int error = tell_turn(turn_event::entered, moved.bytes, moved.ns);
      while (error != 0 && error != ENOTCONN && goes_on()) {
        wait_for_signal();  // until it has the room again that was taken back
        error = tell_turn(turn_event::entered, moved.bytes, moved.ns);
      }
      is_in = error == 0 || error == ENOTCONN;
      crash_point("entered_told");
    }
    has_asked_ = false;
    if (!is_in) {
      // The order has changed. What came in is as it was on the host, so it can leave; what was
      // there before stays, until the daemon asks for it. Without one, another process may wait for
      // it.
      const auto leave_with = [](std::uint64_t left) {
        return swappable().move_out(left, [](std::uint64_t) {}).error;
      };
      if (has_daemon() || leave_with(0) != 0) {
        static_cast<void>(leave_with(kept));
      }
      park_memory();
      if (tell_turn(turn_event::left) == ENOTCONN) {
        pause_alone();
      }
      return;
    }
    alone_again_ = {};
    pause_alone_ = first_pause_alone;
    has_said_alone_ = false;
    is_off_ = false;
    has_said_unfit_ = false;
    seen_ = 0;
    // Without a daemon, programs on the GPU stay there; a job's wait for a new one, to be together.
    const std::uint32_t holds = has_daemon() ? order_hold | order_out : order_hold;
    if ((read_turn().order & holds) != 0 && !goes_alone()) {
      hold_.begin();  // the others of its job are not on their GPUs yet
      return;
    }
    set_side(turn_side::on);
    open_gate();
    crash_point("gate_opened");
  }

  void wait_for_signal() {
    pollfd file{signal_file(), POLLIN, 0};
    constexpr int most_ms = 200;
    poll(&file, 1, most_ms);
    std::array<char, 64> text{};
    static_cast<void>(recv(file.fd, text.data(), text.size(), MSG_DONTWAIT));
    answer_question();
    report_sometimes();
    if ((file.revents & (POLLHUP | POLLERR)) != 0) {
      poll(nullptr, 0, static_cast<int>(look_for_daemon.count() / 10));
      memory_facts unused;
      static_cast<void>(ask_memory(unused));
    }
  }

  hold hold_;            // on the GPU
  bool is_off_ = false;  // off, or entering
  bool has_asked_ = false;
  bool has_said_unfit_ = false;  // of this time off
  std::uint64_t prepared_ = 0;   // the host has room for so many bytes that would leave
  std::uint64_t seen_ = 0;       // submissions when it was looked at last, and 1; 0: not yet
  milliseconds patience_ = first_patience;
  steady_clock::time_point retry_at_;  // it could not leave
  steady_clock::time_point lost_at_;   // the daemon
  steady_clock::time_point reported_at_;
  // Without a daemon, where the GPU had no room:
  steady_clock::time_point alone_again_;  // when to try again
  milliseconds pause_alone_ = first_pause_alone;
  bool has_said_alone_ = false;
  std::minstd_rand chance_{static_cast<std::minstd_rand::result_type>(getpid())};
};

void* run_service(void* /*unused*/) {
  auto* const service = new turn_service;  // until the process ends
  service->run();
  return nullptr;
}

}  // namespace

void start_turn_service() noexcept {
  if (is_started.exchange(true)) {
    return;
  }
  const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made >= 0) {
    wake_file.take(made);
  }
  if (!start_own_thread("gdev", run_service)) {
    is_started.store(false);
  }
}

void wake_turn_service() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_file.number(), &one, sizeof one));
}

void forget_turns() noexcept {
  forget_swappable();
  wake_file.close();
  is_started.store(false);
}

}  // namespace gdev

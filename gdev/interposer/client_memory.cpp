// This process's account of memory: client.hpp.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <mutex>
#include <utility>

#include "base/crash_point.hpp"
#include "base/environment.hpp"
#include "base/uncancelled.hpp"
#include "interposer/client.hpp"
#include "interposer/client_state.hpp"
#include "interposer/gate.hpp"
#include "interposer/notices.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

using namespace client_state;

namespace {

using steady_clock = std::chrono::steady_clock;

std::atomic<std::uint32_t> signal_count = 0;

/** Notes bytes that were taken into use. `state` is held. */
void note_use(std::uint64_t bytes, memory_place where) noexcept {
  mine.bytes += bytes;
  mine.note_change();
  if (where == memory_place::elsewhere) {
    mine.elsewhere += bytes;
    publish_elsewhere();
  }
}

/** Takes bytes of the grant. Returns false if they are more than is left. `state` is held. */
bool use_grant(std::uint64_t bytes, memory_place where) noexcept {
  const std::uint64_t after = mine.bytes + bytes;
  if (page == nullptr || after < mine.bytes ||
      !page->account.use(units_of(after) - units_of(mine.bytes))) {
    return false;
  }
  note_use(bytes, where);
  return true;
}

/** Returns what the daemon says of memory. */
memory_facts facts_of(const message& said) noexcept {
  return {said.numbers[0], said.numbers[1], said.numbers[2], said.numbers[3]};
}

/** Tells whether a GPU is the one on which this process takes turns: the first that it uses. */
bool is_home(const gpu_facts& facts) noexcept {
  const std::lock_guard lock(state);
  if (home.number == 0) {
    home = facts;
  }
  return home.number == facts.number;
}

/** Tells the daemon that what it was asked for is there otherwise: others need not leave for it. */
void end_request(std::uint64_t bytes) noexcept {
  message said{.kind = message_kind::want,
               .numbers = {bytes, 0, 0, 0, static_cast<std::uint64_t>(memory_place::not_any_more)}};
  static_cast<void>(ask_daemon(said));
}

/**
 * Asks for bytes once, if the grant does not suffice. Returns as use_memory(), or EAGAIN: others
 * must leave the GPU first. is_asked: the daemon may have been asked; it has not answered yet.
 */
int try_to_use(std::uint64_t bytes, memory_place where, host_part* part, bool& is_asked) noexcept {
  // A grant of a daemon that is gone may not be what a new one knows.
  if (has_daemon()) {
    const std::lock_guard lock(state);
    if (use_grant(bytes, where)) {
      crash_point("grant_used");
      return 0;
    }
  }
  // The daemon hears only of the GPU on which turns are taken: that of the first allocation.
  gpu_facts seen = where == memory_place::elsewhere ? gpu_facts{} : look_at_gpu();
  int error = 0;
  bool is_first = false;
  memory_facts then;
  {
    const std::lock_guard lock(asking);
    seen = is_home(seen) ? seen : gpu_facts{};
    message said{
        .kind = message_kind::want,
        .numbers = {bytes, seen.number, seen.total, seen.free, static_cast<std::uint64_t>(where)}};
    const int unanswered = ask(said);
    crash_point("want_answered");
    const std::lock_guard state_lock(state);
    if (unanswered == 0) {
      known = facts_of(said);
    }
    if (unanswered == 0 && (said.error == 0 || said.error == EXDEV)) {
      // The daemon has taken so many units; together with the rest of a unit in use it may be less.
      const std::uint64_t before = units_of(mine.bytes);
      note_use(bytes, where);
      page->account.free(units_of(bytes) - (units_of(mine.bytes) - before));
      if (said.error == EXDEV && part != nullptr) {
        mine.enter(*part, bytes);
        publish_elsewhere();
      }
      is_asked = false;
      return 0;
    }
    is_asked = unanswered == 0 && said.error == EAGAIN;
    // What was granted may be used without an answer, and others may have freed.
    if (use_grant(bytes, where)) {
      return 0;
    }
    if ((unanswered == 0 && said.error == EAGAIN) || may_come_back(unanswered)) {
      return EAGAIN;
    }
    error = unanswered != 0 ? ENOTCONN : ENOMEM;
    is_first = !std::exchange(was_refused, true);
    then = known;
    then.own = mine.charged();
  }
  if (is_first) {
    const bool is_limit = then.used + bytes > then.limit;
    say("no memory for %.1f MiB: %s (%s; in use %.1f MiB, %.1f MiB by this process). This is said "
        "once.",
        mebibytes(bytes),
        error != ENOMEM ? "the daemon does not answer"
        : is_limit      ? "the limit is reached"
                        : "the GPU is full, or the host for what would leave it",
        text_of_limit(then.limit).data(), mebibytes(std::max(then.used, then.own)),
        mebibytes(then.own));
  }
  return error;
}

}  // namespace

int use_memory(std::uint64_t bytes, memory_place where, host_part* part) noexcept {
  const uncancelled whole;
  constexpr std::chrono::seconds patience{10};
  const steady_clock::time_point said_at = steady_clock::now() + patience;
  bool has_said = false;
  bool is_asked = false;
  for (;;) {
    const std::uint32_t seen = signal_count.load(std::memory_order_acquire);
    const int error = try_to_use(bytes, where, part, is_asked);
    if (error != EAGAIN) {
      if (is_asked) {
        end_request(bytes);
      }
      note_signal();  // of what this one waited for, another thread may get the rest
      return error;
    }
    if (!has_said && steady_clock::now() >= said_at) {
      has_said = true;
      say("waits for %.1f MiB; others have the GPU (gdev ps)", mebibytes(bytes));
    }
    // A signal ends this; if one is lost, the time does.
    const timespec most{0, 200'000'000};
    syscall(SYS_futex, &signal_count, FUTEX_WAIT_PRIVATE, seen, &most, nullptr, 0);
    const submission in_turn(work::other);  // the wait may have cost the turn
  }
}

void note_signal() noexcept {
  signal_count.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &signal_count, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool is_on_host(const host_part& part) noexcept {
  const std::lock_guard lock(state);
  return part.link != nullptr;
}

void keep_on_host(host_part& part) noexcept {
  const std::lock_guard lock(state);
  part.is_kept = part.link != nullptr;
}

void free_memory(std::uint64_t bytes, memory_place where, host_part* part) noexcept {
  const std::lock_guard lock(state);
  if (page == nullptr || bytes > mine.bytes) {
    return;  // of the parent, before a fork
  }
  const bool is_on_host = part != nullptr && part->link != nullptr;
  const bool is_elsewhere = is_on_host || where == memory_place::elsewhere;
  if (is_on_host) {
    mine.leave(*part);
  } else if (is_elsewhere) {
    mine.elsewhere -= bytes;
  }
  if (is_elsewhere) {
    publish_elsewhere();
  }
  const std::uint64_t before = units_of(mine.bytes);
  mine.bytes -= bytes;
  mine.note_change();
  // A grant for another GPU must not become one for this GPU.
  page->account.free(before - units_of(mine.bytes), is_elsewhere);
  crash_point("grant_freed");
}

int ask_for_segment(message& said, int sent, file_descriptor& received) noexcept {
  if (*variable("GDEV_SOCKET") == '\0') {
    return ENOSYS;
  }
  if (!has_joined()) {
    return ENODEV;
  }
  const uncancelled whole;
  const std::lock_guard lock(asking);
  const bool is_made = said.kind == message_kind::key_make;
  const std::uint64_t bytes = said.numbers[3];
  daemon_connection::descriptors files{-1, -1};
  const int error = ask(said, sent, files);
  received = file_descriptor(std::exchange(files[0], -1));
  close_all(files);
  if (error != 0) {
    return ENOTCONN;
  }
  if (is_made && said.error == 0 && said.numbers[1] == 1) {
    // The daemon has taken them out of the page.
    const std::lock_guard state_lock(state);
    crash_point("segment_charged");
    mine.bytes -= std::min(bytes, mine.bytes);
    mine.note_change();
  }
  return said.error;
}

bool ask_memory(memory_facts& facts, const gpu_facts& on) noexcept {
  if (!has_joined()) {
    return false;
  }
  const uncancelled whole;
  const std::lock_guard lock(asking);
  message said{.kind = message_kind::memory, .numbers = {on.number, on.total}};
  const bool is_answered = ask(said) == 0 && said.error == 0;
  const std::lock_guard state_lock(state);
  if (is_answered) {
    known = facts_of(said);
  } else {
    known.used = std::max(known.used, mine.charged());
  }
  facts = known;
  facts.own = mine.bytes - mine.elsewhere;
  return true;
}

// --- Turns ---

bool use_gpu(const gpu_facts& facts) noexcept {
  const uncancelled whole;
  const std::lock_guard lock(asking);
  if (!is_home(facts)) {
    return false;
  }
  message said{.kind = message_kind::gpu, .numbers = {facts.number, facts.total, facts.free}};
  static_cast<void>(ask(said));  // a daemon that comes later hears of it in hello
  return true;
}

}  // namespace gdev

#include "interposer/client.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/crash_point.hpp"
#include "base/uncancelled.hpp"
#include "interposer/connection.hpp"
#include "interposer/context_calls.hpp"
#include "interposer/gate.hpp"
#include "interposer/graph_memory.hpp"
#include "interposer/handles.hpp"
#include "interposer/held_page.hpp"
#include "interposer/ipc.hpp"
#include "interposer/job.hpp"
#include "interposer/ledger.hpp"
#include "interposer/memory_in_use.hpp"
#include "interposer/notices.hpp"
#include "interposer/overhead.hpp"
#include "interposer/pools.hpp"
#include "interposer/shared_memory.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/turn_service.hpp"
#include "protocol/account.hpp"
#include "protocol/envelope.hpp"
#include "protocol/messages.hpp"

namespace gdev {

namespace {

using steady_clock = std::chrono::steady_clock;

// Order: asking, then state. Neither is held across a call of the driver.
constinit std::mutex asking;  // guards the connection; held while the daemon answers
daemon_connection daemon_link;
steady_clock::time_point next_try;  // after a daemon that did not answer in time
steady_clock::time_point lost_at;   // when a daemon was missed first; zero: it is there

// Guards what follows. Held for moments, but while a client comes back to a daemon: then it says
// what is in use, and nothing may change until it has its new page.
constinit std::mutex state;
client_page* page = nullptr;
memory_in_use mine;
memory_facts known;        // as the daemon said last
bool was_refused = false;  // and said so
gpu_facts home;            // the GPU on which this process takes turns

std::atomic<bool> joined = false;
std::atomic<turn_side> side = turn_side::on;
own_descriptor signals;  // taken with `asking` held
std::atomic<std::uint32_t> signal_count = 0;

pthread_once_t fork_once = PTHREAD_ONCE_INIT;

const char* variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void close_all(const daemon_connection::descriptors& files) noexcept {
  for (const int file : files) {
    if (file >= 0) {
      close(file);
    }
  }
}

/**
 * In a forked child: forgets all. The parent goes on with the page and the connection.
 *
 * A thread that is not here any more may have held the locks, and a signal handler may fork while
 * its own thread holds them. So they are made anew; nothing was taken before the fork.
 */
void in_child() noexcept {
  new (&asking) std::mutex;
  new (&state) std::mutex;
  forget_contexts();
  forget_ledgers();
  forget_handles();
  forget_pools();
  forget_attachments();
  forget_gate();
  forget_ipc();
  forget_turns();
  forget_overhead();
  forget_graph_memory();
  daemon_link.close();
  signals.close();
  if (page != nullptr) {
    munmap(page, client_page_bytes);
    page = nullptr;
  }
  mine = {};
  known = {};
  was_refused = false;
  next_try = {};
  lost_at = {};
  home = {};
  forget_host_requests();
  side.store(turn_side::on, std::memory_order_relaxed);
  joined.store(false, std::memory_order_relaxed);
}

void watch_forks() noexcept { pthread_atfork(nullptr, nullptr, in_child); }

/** Publishes what is not on the GPU on which turns are taken. `state` is held. */
void publish_elsewhere() noexcept {
  if (page != nullptr) {
    page->elsewhere.store(static_cast<std::uint32_t>(units_of(mine.elsewhere)),
                          std::memory_order_relaxed);
  }
}

/** What is in the host's memory counts as here from now on, unless it stays. `state` is held. */
void bring_home() noexcept {
  for (host_part* next = mine.host_parts; next != nullptr;) {
    host_part& part = *std::exchange(next, next->next);
    if (!part.is_kept) {
      mine.leave(part);
    }
  }
  publish_elsewhere();
}

/** Maps a page that the daemon sent. Returns an errno. `state` is held. */
int map_page(int file) noexcept {
  void* const made = mmap(nullptr, client_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (made == MAP_FAILED) {
    return errno;
  }
  auto* const now = static_cast<client_page*>(made);
  if (page != nullptr) {
    now->is_paused.store(page->is_paused.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
    munmap(page, client_page_bytes);
  }
  page = now;
  page->swappable.store(mine.swappable_units, std::memory_order_relaxed);
  page->resident.store(mine.resident_units, std::memory_order_relaxed);
  page->has_files.store(std::uint32_t{mine.has_files}, std::memory_order_relaxed);
  bring_home();  // a new daemon does not know what leaves with the rest
  return page->version == protocol_version ? 0 : EPROTO;
}

/** Connects, and says hello with what is in use. Returns an errno. `asking` is held. */
int connect_to_daemon() noexcept {
  const std::lock_guard lock(state);
  message said{.kind = message_kind::hello};
  const held_on_host held = host_requests();
  const turn_side now = side.load(std::memory_order_relaxed);
  const host_share share{now == turn_side::off, now == turn_side::held, units_of(held.memory),
                         units_of(held.files)};
  said.job = job_of_process().packed();
  said.numbers = {mine.bytes, share.packed(), home.number, home.total};
  for (std::size_t i = 0; page != nullptr && i < counters; ++i) {
    said.numbers[4 + i] = page->counts[i].load(std::memory_order_relaxed);  // of the old daemon
  }
  if (!set_name(said, vgpu_name())) {
    return EINVAL;
  }
  daemon_connection::descriptors files{-1, -1};
  int error = daemon_link.open(variable("GDEV_SOCKET"));
  if (error == 0) {
    error = daemon_link.exchange(said, -1, files);
  }
  crash_point("hello_answered");
  if (error == 0) {
    error = said.error != 0 ? said.error : files[1] < 0 ? EPROTO : map_page(files[0]);
  }
  if (error == 0) {
    crash_point("page_mapped");
    known = {said.numbers[0], mine.charged(), known.most, known.sure};
    signals.take(std::exchange(files[1], -1));
  }
  close_all(files);
  if (error != 0) {
    daemon_link.close();
    return error;
  }
  const auto tells = [](message& asked) noexcept {
    daemon_connection::descriptors none{-1, -1};
    const int failed = daemon_link.exchange(asked, -1, none);
    close_all(none);
    return failed;
  };
  if (mine.overhead.source != overhead_source::unknown) {
    message told = about_overhead(mine.overhead, false);
    static_cast<void>(tells(told));
  }
  if (page->is_paused.load(std::memory_order_relaxed) != 0) {
    message told{.kind = message_kind::turn,
                 .numbers = {static_cast<std::uint64_t>(turn_event::paused)}};
    static_cast<void>(tells(told));
  }
  crash_point("hello_done");
  attach_again(tells);
  return 0;
}

/**
 * Asks the daemon; connects again, once, if it is gone. `asking` is held.
 *
 * sent: a descriptor that goes with the message, or -1. Returns an errno.
 */
int ask(message& said, int sent, daemon_connection::descriptors& received) noexcept {
  if (steady_clock::now() < next_try) {
    return ENOTCONN;
  }
  const message asked = said;
  int error = daemon_link.exchange(said, sent, received);
  if (error != 0 && error != ETIMEDOUT) {
    error = connect_to_daemon();
    if (error == 0) {
      wake_turn_service();  // it watches the old signals
      said = asked;
      error = daemon_link.exchange(said, sent, received);
    }
  }
  if (error != 0) {
    daemon_link.close();
  }
  if (error == ETIMEDOUT) {
    next_try = steady_clock::now() + retry_interval;
  }
  if (error == 0) {
    lost_at = {};
  } else if (error != ETIMEDOUT && lost_at == steady_clock::time_point{}) {
    lost_at = steady_clock::now();
  }
  return error;
}

/** Tells whether a daemon that gave no answer may be about to be started anew. `asking` is held. */
bool may_come_back(int error) noexcept {
  return error != 0 && error != ETIMEDOUT && error != ENOTCONN &&
         steady_clock::now() - lost_at < restart_time;
}

/** The same, without descriptors. */
int ask(message& said) noexcept {
  daemon_connection::descriptors unexpected{-1, -1};
  const int error = ask(said, -1, unexpected);
  close_all(unexpected);
  return error;
}

/** Takes bytes of the grant. Returns false if they are more than is left. `state` is held. */
bool use_grant(std::uint64_t bytes) noexcept {
  const std::uint64_t after = mine.bytes + bytes;
  if (page == nullptr || after < mine.bytes ||
      !page->account.use(units_of(after) - units_of(mine.bytes))) {
    return false;
  }
  mine.bytes = after;
  mine.note_change();
  return true;
}

/** Returns what the daemon says of memory. */
memory_facts facts_of(const message& said) noexcept {
  return {said.numbers[0], said.numbers[1], said.numbers[2], said.numbers[3]};
}

}  // namespace

const char* vgpu_name() noexcept {
  const char* const name = variable("GDEV_VGPU");
  return *name == '\0' ? "default" : name;
}

namespace {

/** Returns what is wrong, and what to do, where this process cannot join its virtual GPU. */
const char* why_not_joined(int error) noexcept {
  switch (error) {
    case ECONNREFUSED: return "no daemon runs (gdev run starts one)";
    case ENOENT: return "there is none of this name (gdev vgpu list), or no daemon (gdev run)";
    case EACCES: return "it is another user's (its owner can add one with --everybody)";
    case EPROTO: return "the daemon is of another version (gdev stop ends it)";
    case ETIMEDOUT: return "the daemon does not answer (gdev stop, or kill gdevd)";
    case EINVAL: return "its name is too long";
    default: return std::strerror(error);
  }
}

}  // namespace

int join_vgpu() noexcept {
  if (*variable("GDEV_SOCKET") == '\0') {
    return 0;
  }
  pthread_once(&fork_once, watch_forks);
  const uncancelled whole;
  const std::lock_guard lock(asking);
  if (joined.load(std::memory_order_relaxed)) {
    return 0;
  }
  const int error = connect_to_daemon();
  if (error == 0) {
    prepare_gate(wake_turn_service);
    start_turn_service();
    joined.store(true, std::memory_order_relaxed);
    crash_point("joined");
    return 0;
  }
  say("cannot join its virtual GPU: %s", why_not_joined(error));
  return error;
}

bool has_joined() noexcept { return joined.load(std::memory_order_relaxed); }

namespace {

/** Tells whether a GPU is the one on which this process takes turns: the first that it uses. */
bool is_home(const gpu_facts& facts) noexcept {
  const std::lock_guard lock(state);
  if (home.number == 0) {
    home = facts;
  }
  return home.number == facts.number;
}

/** Asks for bytes once. Returns as use_memory(), or EAGAIN: others must leave the GPU first. */
int try_to_use(std::uint64_t bytes, memory_place where, host_part* part) noexcept {
  // A grant of a daemon that is gone may not be what a new one knows.
  if (!daemon_link.is_hung_up()) {
    const std::lock_guard lock(state);
    if (use_grant(bytes)) {
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
      mine.bytes += bytes;
      mine.note_change();
      page->account.free(units_of(bytes) - (units_of(mine.bytes) - before));
      if (said.error == EXDEV && part != nullptr) {
        mine.enter(*part, bytes);
      } else if (where == memory_place::elsewhere) {
        mine.elsewhere += bytes;
      }
      publish_elsewhere();
      return 0;
    }
    // What was granted may be used without an answer, and others may have freed.
    if (use_grant(bytes)) {
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
  for (;;) {
    const std::uint32_t seen = signal_count.load(std::memory_order_acquire);
    const int error = try_to_use(bytes, where, part);
    if (error != EAGAIN) {
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
  publish_elsewhere();
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

void set_side(turn_side now) noexcept {
  side.store(now, std::memory_order_relaxed);
  const std::lock_guard lock(state);
  mine.window.is_on_gpu = false;
}

int ask_daemon(message& said, bool has_left) noexcept {
  const uncancelled whole;
  const std::lock_guard lock(asking);
  if (has_left) {
    const std::lock_guard state_lock(state);
    bring_home();
  }
  const int error = ask(said);
  return error != 0 ? ENOTCONN : said.error;
}

bool is_away() noexcept { return side.load(std::memory_order_relaxed) == turn_side::off; }

bool has_daemon() noexcept { return !daemon_link.is_hung_up(); }

int signal_file() noexcept { return signals.is_there() ? signals.number() : -1; }

held_page::held_page(bool waits) noexcept : lock_(state, std::defer_lock) {
  if (waits) {
    lock_.lock();
  }
  page_ = waits || lock_.try_lock() ? page : nullptr;
}

memory_in_use& held_page::memory() noexcept { return mine; }

}  // namespace gdev

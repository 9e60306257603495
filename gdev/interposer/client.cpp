#include "interposer/client.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/crash_point.hpp"
#include "base/environment.hpp"
#include "base/uncancelled.hpp"
#include "interposer/client_state.hpp"
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

namespace client_state {

constinit std::mutex asking;
constinit std::mutex state;
client_page* page = nullptr;
memory_in_use mine;
memory_facts known;
bool was_refused = false;
gpu_facts home;

}  // namespace client_state

using namespace client_state;  // what is its own

namespace {

using steady_clock = std::chrono::steady_clock;

// `asking` guards them.
daemon_connection daemon_link;
steady_clock::time_point next_try;  // after a daemon that did not answer in time
steady_clock::time_point lost_at;   // when a daemon was missed first; zero: it is there

std::atomic<bool> joined = false;
std::atomic<turn_side> side = turn_side::on;
own_descriptor signals;  // taken with `asking` held

pthread_once_t fork_once = PTHREAD_ONCE_INIT;

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
  return daemon_link.is_open() ? 0 : ETIMEDOUT;  // one of them was not answered in time
}

}  // namespace

void client_state::close_all(const daemon_connection::descriptors& files) noexcept {
  for (const int file : files) {
    if (file >= 0) {
      close(file);
    }
  }
}

void client_state::publish_elsewhere() noexcept {
  if (page != nullptr) {
    page->elsewhere.store(static_cast<std::uint32_t>(units_of(mine.elsewhere)),
                          std::memory_order_relaxed);
  }
}

int client_state::ask(message& said, int sent, daemon_connection::descriptors& received) noexcept {
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

bool client_state::may_come_back(int error) noexcept {
  return error != 0 && error != ETIMEDOUT && error != ENOTCONN &&
         steady_clock::now() - lost_at < restart_time;
}

int client_state::ask(message& said) noexcept {
  daemon_connection::descriptors unexpected{-1, -1};
  const int error = ask(said, -1, unexpected);
  close_all(unexpected);
  return error;
}

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
    case EACCES: return "it is another user's (gdev vgpu set --users says whose)";
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

/**
 * This process as a client of the daemon: which virtual GPU it uses, and its account of memory.
 *
 * GDEV_SOCKET names the daemon's socket, GDEV_VGPU the virtual GPU. Without the first the process
 * is no client, and nothing here does anything. A forked child is not its parent's client: it
 * becomes one of its own when it initializes CUDA.
 *
 * Thread-safe. A call that needs the daemon waits for it at most `answer_timeout`, or twice that if
 * the daemon was started anew. Others, such as frees, wait only while a client comes back to a
 * daemon.
 */
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "protocol/account.hpp"
#include "protocol/counters.hpp"
#include "protocol/messages.hpp"

namespace gdev {

inline constexpr std::chrono::seconds answer_timeout{2};
/** How long a daemon that did not answer in time is not asked again. */
inline constexpr std::chrono::seconds retry_interval{5};
/** How long requests for memory wait for a daemon that has ended, and may be started anew. */
inline constexpr std::chrono::seconds restart_time{2};

/** Joins the virtual GPU. Returns 0, also if there is nothing to join, or an errno. */
[[nodiscard]] int join_vgpu() noexcept;

/** Returns the virtual GPU's name. */
[[nodiscard]] const char* vgpu_name() noexcept;

/** Tells whether this process has joined a virtual GPU. */
[[nodiscard]] bool has_joined() noexcept;

/** A part of what is in use that is in the host's memory, until this process leaves the GPU. */
struct host_part {
  std::uint64_t bytes = 0;
  host_part* next = nullptr;   // one more
  host_part** link = nullptr;  // where this one is entered; null: it is not in the host's memory
  bool is_kept = false;        // it stays there
};

/**
 * Takes bytes of the virtual GPU's memory into use.
 *
 * where: `any` needs a part, which is_on_host() afterwards if they must be in the host's memory
 * until this process leaves the GPU: others wait for that, and may never get to it while this waits
 * for them. Then the part must not move. Waits while others must leave the GPU first: until their
 * turns are over. The caller holds no submission (gate.hpp). Returns 0; ENOMEM: the limit, or more
 * than the GPU can have; ENOTCONN: the grant does not suffice, and the daemon does not answer, or
 * has ended restart_time ago.
 */
[[nodiscard]] int use_memory(std::uint64_t bytes, memory_place where = memory_place::here,
                             host_part* part = nullptr) noexcept;

/** Returns what use_memory() took. */
void free_memory(std::uint64_t bytes, memory_place where = memory_place::here,
                 host_part* part = nullptr) noexcept;

/**
 * Tells whether a part counts as in the host's memory. Where it does not any more, this process has
 * left the GPU since, or a new daemon counts it as on the GPU.
 */
[[nodiscard]] bool is_on_host(const host_part& part) noexcept;
/** It stays in the host's memory, if it is there. */
void keep_on_host(host_part& part) noexcept;

struct memory_facts {
  std::uint64_t limit = 0;  // bytes
  std::uint64_t used = 0;   // by all clients of the virtual GPU
  std::uint64_t most = 0;   // what this process could have on its GPU, if others leave
  std::uint64_t sure = 0;   // and if those stay that need not leave
  std::uint64_t own = 0;    // what it has
};

/** A GPU, and its memory in bytes. Number 0: none. */
struct gpu_facts {
  std::uint64_t number = 0;
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

/**
 * Asks for the virtual GPU's memory. Without a daemon: what it said last. Returns false if this
 * process has joined no virtual GPU.
 *
 * on: of which GPU, where this process takes turns on none yet.
 */
[[nodiscard]] bool ask_memory(memory_facts& facts, const gpu_facts& on = {}) noexcept;

// --- Overhead; for overhead.cpp ---

/** What this process has on GPUs and no allocation holds. */
struct measured_overhead {
  std::uint64_t bytes = 0;
  overhead_source source = overhead_source::unknown;
};

/** What was allocated and stayed on the GPUs while something was measured. */
struct memory_window {
  std::uint64_t most = 0;  // bytes, at any moment of it
  bool is_quiet = true;    // nothing has changed
  bool is_on_gpu = true;   // no memory was moved
};

/** Begins to watch what is allocated on the GPUs. */
void begin_window() noexcept;
/** Returns what was seen since. */
[[nodiscard]] memory_window end_window() noexcept;
/** Returns what the daemon was told last. */
[[nodiscard]] measured_overhead told_overhead() noexcept;
/**
 * Tells the daemon the overhead. Returns 0, also without a daemon, which hears of it when it comes;
 * ENOMEM: it may be refused, and the limit has no room for it. One thread at a time may call it.
 */
[[nodiscard]] int tell_overhead(const measured_overhead& now, bool may_be_refused) noexcept;
/** Returns the message that tells it. */
[[nodiscard]] message about_overhead(const measured_overhead& now, bool may_be_refused) noexcept;
/** Tells whether memory is off the GPU, or about to be. */
[[nodiscard]] bool is_away() noexcept;

// --- Turns; for turn_service ---

/** Says that this process uses a GPU. Returns false if it takes its turns on another one. */
bool use_gpu(const gpu_facts& facts) noexcept;

/** Says how many bytes can leave the GPU with a turn, and how many of them are there. */
void publish_memory(std::uint64_t swappable, std::uint64_t resident) noexcept;

struct turn_words {
  std::uint32_t order = 0;  // as in client_page
  std::uint32_t hold = 0;   // as in client_page
  std::uint64_t room = 0;   // bytes for what can leave with a turn
};
[[nodiscard]] turn_words read_turn() noexcept;

/** On which side of a turn this process is. */
enum class turn_side : std::uint8_t {
  on,    // the GPU
  held,  // on it, and submits nothing, as by order_hold
  off,   // or about to be
};
/** Remembers it, for a daemon that is started anew. */
void set_side(turn_side now) noexcept;

/**
 * Sends the daemon a message, which becomes the answer. Returns its error, or ENOTCONN.
 *
 * has_left: all that was in the host's memory leaves with the rest from now on. No request that the
 * daemon has answered before is left out, and it answers none after.
 */
int ask_daemon(message& said, bool has_left = false) noexcept;

/** Tells the daemon what happens. Returns its answer, or ENOTCONN. */
int tell_turn(turn_event what, std::uint64_t a = 0, std::uint64_t b = 0) noexcept;

/** Asks for so many bytes of the host's memory, altogether. Returns 0, ENOMEM or ENOTCONN. */
[[nodiscard]] int ask_for_host_memory(std::uint64_t bytes) noexcept;
/** The same, for so many bytes in files. */
[[nodiscard]] int ask_for_swap_files(std::uint64_t bytes) noexcept;
/** What the daemon lets this process hold, in bytes. */
struct held_on_host {
  std::uint64_t memory = 0;
  std::uint64_t files = 0;
};
[[nodiscard]] held_on_host host_requests() noexcept;
/** Says that this process may make swap files. */
void publish_files() noexcept;
/** In a forked child: it holds nothing. */
void forget_host_requests() noexcept;

/** Tells whether the connection is there. Waits for nothing. */
[[nodiscard]] bool has_daemon() noexcept;

/** Returns the socket of the daemon's signals, or -1. */
[[nodiscard]] int signal_file() noexcept;

/** Ends the waits of use_memory(), which ask again. */
void note_signal() noexcept;

// --- Counts; for observed.cpp ---

struct counts_question {
  std::uint32_t asked = 0;  // as in client_page
  bool is_answered = true;
  std::size_t known_names = 0;  // of unknown functions
};
[[nodiscard]] counts_question read_question() noexcept;

using own_counts = std::array<std::uint64_t, own_counters>;
/** Answers the question `asked` with this process's own counts. */
void publish_counts(std::uint32_t asked, const own_counts& counts) noexcept;
/** Stores them at the process's end, without a wait: not if another thread has the page then. */
void publish_last_counts(const own_counts& counts) noexcept;

/**
 * Asks the daemon about memory shared by keys: sends a message of such a kind, which becomes the
 * answer. sent: a descriptor that goes with it, or -1; received: one that comes with the answer.
 *
 * Of a chunk that the daemon keeps (key_make), the bytes must be in use; they are not afterwards.
 *
 * Returns the daemon's error; ENOTCONN: it does not answer, or ended the connection; ENODEV: the
 * process has not initialized CUDA; ENOSYS: it does not run in a virtual GPU.
 */
[[nodiscard]] int ask_for_segment(message& said, int sent, file_descriptor& received) noexcept;

}  // namespace gdev

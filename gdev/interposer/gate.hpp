/**
 * The gate: what a program submits to the GPU passes it, and waits there while it is closed.
 *
 * A call of the driver that submits work holds a `submission`. To take the program off the GPU, the
 * turn service closes the gate, waits until no submission is held, and then waits for the GPU.
 *
 * Passing costs a few plain loads and stores on a cache line of the thread's own. The closing side
 * pays: membarrier(2) makes the stores of all threads visible to it, and its own to them.
 *
 *     a submission begins             the gate closes
 *     inside = inside + 1             closed = queues
 *     (no reordering by compilers)    membarrier
 *     if (closed): inside - 1, wait   wait until all `inside` are 0
 *
 * Either the closing side sees `inside`, or the submission sees `closed`.
 */
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace gdev {

/** What a call submits. */
enum class work : std::uint8_t {
  launch,     // kernels and graphs
  fill,       // what writes memory on the device, and copies whose direction the call does not say
  to_device,  // copies from the host
  to_host,    // copies to what the program calls the host
  other,      // calls that no turn may end meanwhile: they allocate, free, or begin a capture
};
inline constexpr std::size_t works = 5;

/** The queues of a GPU, which are closed apart. A set of them has a bit for each. */
enum class queue : std::uint8_t { compute, to_device, to_host };
inline constexpr unsigned all_queues = 0b111;

/** Returns the queue in which work of a kind goes. */
[[nodiscard]] constexpr queue queue_of(work kind) noexcept {
  return kind == work::to_device ? queue::to_device
         : kind == work::to_host ? queue::to_host
                                 : queue::compute;
}

struct gate_line;

/**
 * Waits while the gate is closed for its queue, and holds it open while it lives.
 *
 * A thread that holds one already does not wait, unless more than 255 threads have come here. Not a
 * cancellation point.
 */
class submission {
 public:
  /** This thread has passed the gate already, and leaves it with this object. */
  struct passed {};

  explicit submission(work kind) noexcept;
  explicit submission(passed) noexcept;
  submission(const submission&) = delete;
  submission& operator=(const submission&) = delete;
  ~submission();

 private:
  gate_line& line_;
};

/**
 * Keeps memory where it is while it lives: on the GPU, as a submission of work::other does, or off
 * it. For calls that only give memory back: it waits while memory moves, but for no turn.
 *
 * Off the GPU the next move waits for its end. So such a thread must not begin another one, nor
 * wait for anything that waits for the gate.
 */
class memory_pass {
 public:
  memory_pass() noexcept;
  memory_pass(const memory_pass&) = delete;
  memory_pass& operator=(const memory_pass&) = delete;
  ~memory_pass();

 private:
  std::optional<submission> on_gpu_;  // none: the memory is parked
};

/** Returns what all threads have submitted, as far as it is visible. */
[[nodiscard]] std::uint64_t count_submissions(work kind) noexcept;

/** Closes queues. Returns at once: submissions may be held still. */
void close_gate(unsigned queues) noexcept;
/** Opens all queues, and ends what let_pass() allowed. */
void open_gate() noexcept;
/**
 * Lets so many calls pass the closed gate, one by one as they come, and none of those that were
 * allowed before and have not passed yet. Those that have are seen by wait_for_submissions().
 */
void let_pass(unsigned calls) noexcept;
/** Returns how many calls may still pass the closed gate. */
[[nodiscard]] unsigned calls_left() noexcept;
/** Says that all memory is off the GPU. The gate is closed, and no submission is held. */
void park_memory() noexcept;
/** The memory is about to move: waits for those that hold a memory_pass off the GPU. */
void unpark_memory() noexcept;
/** Waits until no submission is held. Returns false if the time is up. The gate must be closed. */
[[nodiscard]] bool wait_for_submissions(std::chrono::steady_clock::time_point deadline) noexcept;
/** Counts captures of graphs that have begun (1) or ended (-1). The caller holds a submission to
 * begin one: so the count does not rise while the gate is closed and no submission is held. */
void count_capture(int change) noexcept;
[[nodiscard]] bool has_captures() noexcept;

/** Tells whether threads wait at the gate. */
[[nodiscard]] bool has_waiting_submissions() noexcept;

/**
 * Must be called before the gate is closed for the first time, and before there is any reason to.
 *
 * listener: what a thread does that begins to wait, or is the last one that let_pass() allowed to
 * go on; it is called without a lock.
 */
void prepare_gate(void (*listener)() noexcept) noexcept;

/** In a forked child: the gate is open, nobody is in it, and nothing was submitted. */
void forget_gate() noexcept;

}  // namespace gdev

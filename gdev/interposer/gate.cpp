#include "interposer/gate.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/endless.hpp"
#include "base/uncancelled.hpp"

namespace gdev {

/** What a thread writes at each call; on a cache line of its own, as no other thread writes it. */
struct alignas(64) gate_line {
  std::atomic<std::uint32_t> inside{0};
  std::array<std::atomic<std::uint64_t>, works> counts{};
};

namespace {

constexpr std::size_t own_lines = 255;

// The last line is for the threads beyond those that have their own.
std::array<gate_line, own_lines + 1> lines;
std::array<std::atomic<bool>, own_lines> taken;

std::atomic<unsigned> closed_queues{0};
std::atomic<int> waiting{0};
std::atomic<int> captures{0};
std::atomic<void (*)() noexcept> on_waiting{nullptr};
// Where the kernel refuses membarrier(2), each submission pays for a fence.
std::atomic<bool> needs_fence{false};

struct opening {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool is_parked = false;
  unsigned passes = 0;  // that are held while memory is parked
  unsigned calls = 0;   // that may pass although the gate is closed
};
endless<opening> the_opening;

gate_line& shared_line() noexcept { return lines[own_lines]; }

// The calling thread's line; null before its first call. Its place is fixed when the library is
// loaded (initial-exec): finding it by a function, as is usual in a library, took most of the time
// of a call.
constinit thread_local gate_line* own_line __attribute__((tls_model("initial-exec"))) = nullptr;

/** Gives the line of its thread back. */
class line_holder {
 public:
  line_holder() = default;
  line_holder(const line_holder&) = delete;
  line_holder& operator=(const line_holder&) = delete;
  ~line_holder() {
    if (index_ < own_lines) {
      own_line = &shared_line();  // for calls later in the thread's end
      taken[index_].store(false, std::memory_order_release);
    }
  }

  /** Returns a line for this thread: one of its own if any is left. */
  [[nodiscard]] gate_line& take() noexcept {
    for (index_ = 0; index_ < own_lines; ++index_) {
      // Acquire, with the release above: the counts of the thread that had the line before.
      if (!taken[index_].exchange(true, std::memory_order_acquire)) {
        break;
      }
    }
    return lines[index_];
  }

 private:
  std::size_t index_ = own_lines;
};

thread_local line_holder holder;

__attribute__((noinline)) gate_line& take_line() noexcept {
  own_line = &holder.take();
  return *own_line;
}

/** Returns the line of the calling thread. */
gate_line& line_here() noexcept { return own_line != nullptr ? *own_line : take_line(); }

bool is_shared(const gate_line& line) noexcept { return &line == &shared_line(); }

/** Adds to a count that no other thread changes, unless the line is shared. */
template <typename Number>
Number add(const gate_line& line, std::atomic<Number>& count, Number change,
           std::memory_order order) noexcept {
  if (is_shared(line)) [[unlikely]] {
    return count.fetch_add(change, std::memory_order_seq_cst);
  }
  const Number before = count.load(std::memory_order_relaxed);
  count.store(before + change, order);
  return before;
}

/** Makes the stores of all threads visible here, and those of this thread to them. */
void fence_all_threads() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with theirs, if they need one
  static_cast<void>(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
}

bool is_closed(work kind) noexcept {
  // Acquire, with the release of open_gate(): who passes sees what a move has changed.
  return (closed_queues.load(std::memory_order_acquire) >> static_cast<unsigned>(queue_of(kind)) &
          1U) != 0;
}

void begin_submission(gate_line& line) noexcept {
  add<std::uint32_t>(line, line.inside, 1, std::memory_order_relaxed);
}

// Release: the closing side sees all that the call did.
void end_submission(gate_line& line) noexcept {
  add<std::uint32_t>(line, line.inside, ~std::uint32_t{0}, std::memory_order_release);
}

void count_call(gate_line& line, work kind) noexcept {
  // Not before it has passed: a move must not take it for work that was there before.
  add<std::uint64_t>(line, line.counts[static_cast<std::size_t>(kind)], 1,
                     std::memory_order_relaxed);
}

void tell_listener() noexcept {
  if (const auto listener = on_waiting.load(std::memory_order_acquire); listener != nullptr) {
    listener();
  }
}

/** How the wait of a thread at the gate has ended. */
enum class wait_end : std::uint8_t {
  open,      // the gate is open: it tries again
  let_pass,  // it has passed: it is inside
  parked,    // memory is parked, and it has taken a pass to it
};

/** Waits until the gate is open, or lets this thread pass, or, if that is enough, memory is parked.
 */
__attribute__((noinline)) wait_end wait_until_open(work kind, bool is_parking_enough) noexcept {
  const uncancelled whole;
  opening& of = the_opening.get();
  if (is_parking_enough) {
    const std::lock_guard lock(of.mutex);
    if (of.is_parked) {  // it waits for nothing, so nobody is told that it needs the GPU
      ++of.passes;
      return wait_end::parked;
    }
  }
  if (waiting.fetch_add(1, std::memory_order_seq_cst) == 0) {
    tell_listener();
  }
  wait_end how = wait_end::open;
  bool is_last = false;
  {
    std::unique_lock lock(of.mutex);
    of.changed.wait(lock, [&] {
      return !is_closed(kind) || of.calls != 0 || (is_parking_enough && of.is_parked);
    });
    if (is_parking_enough && of.is_parked) {
      how = wait_end::parked;
      ++of.passes;
    } else if (of.calls != 0 && is_closed(kind)) {  // it may have been closed since
      how = wait_end::let_pass;
      is_last = --of.calls == 0;
      // Before the lock is given back: whoever ends this by let_pass() sees that it is inside.
      gate_line& line = line_here();
      begin_submission(line);
      count_call(line, kind);
    }
  }
  waiting.fetch_sub(1, std::memory_order_seq_cst);
  if (is_last) {
    tell_listener();
  }
  return how;
}

/** Passes the gate, and returns true, or returns false: it is closed. */
bool enter(gate_line& line, work kind) noexcept {
  begin_submission(line);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (needs_fence.load(std::memory_order_relaxed)) [[unlikely]] {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // An outer submission of this thread keeps the gate from being passed by the other side.
  if (!is_closed(kind) || (!is_shared(line) && line.inside.load(std::memory_order_relaxed) > 1))
      [[likely]] {
    count_call(line, kind);
    return true;
  }
  end_submission(line);
  return false;
}

}  // namespace

submission::submission(passed /*unused*/) noexcept : line_(line_here()) {}

submission::submission(work kind) noexcept : line_(line_here()) {
  while (!enter(line_, kind) && wait_until_open(kind, false) == wait_end::open) {
  }
}

submission::~submission() { end_submission(line_); }

memory_pass::memory_pass() noexcept : on_gpu_(std::nullopt) {
  wait_end how = wait_end::open;
  while (how == wait_end::open) {
    how = enter(line_here(), work::other) ? wait_end::let_pass : wait_until_open(work::other, true);
  }
  if (how == wait_end::let_pass) {
    on_gpu_.emplace(submission::passed{});
  }
}

memory_pass::~memory_pass() {
  if (!on_gpu_.has_value()) {
    opening& of = the_opening.get();
    {
      const std::lock_guard lock(of.mutex);
      --of.passes;
    }
    of.changed.notify_all();
  }
}

void park_memory() noexcept {
  {
    const std::lock_guard lock(the_opening.get().mutex);
    the_opening.get().is_parked = true;
  }
  the_opening.get().changed.notify_all();
}

void unpark_memory() noexcept {
  opening& of = the_opening.get();
  std::unique_lock lock(of.mutex);
  of.is_parked = false;
  of.changed.wait(lock, [&of] { return of.passes == 0; });
}

std::uint64_t count_submissions(work kind) noexcept {
  std::uint64_t sum = 0;
  for (const gate_line& line : lines) {
    sum += line.counts[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }
  return sum;
}

void close_gate(unsigned queues) noexcept {
  closed_queues.store(queues, std::memory_order_relaxed);
  fence_all_threads();
}

void open_gate() noexcept {
  {
    const std::lock_guard lock(the_opening.get().mutex);
    closed_queues.store(0, std::memory_order_release);
    the_opening.get().calls = 0;
  }
  the_opening.get().changed.notify_all();
}

void let_pass(unsigned calls) noexcept {
  {
    const std::lock_guard lock(the_opening.get().mutex);
    the_opening.get().calls = calls;
  }
  the_opening.get().changed.notify_all();
}

unsigned calls_left() noexcept {
  const std::lock_guard lock(the_opening.get().mutex);
  return the_opening.get().calls;
}

bool wait_for_submissions(std::chrono::steady_clock::time_point deadline) noexcept {
  for (const gate_line& line : lines) {
    for (int tries = 0; line.inside.load(std::memory_order_acquire) != 0; ++tries) {
      if (std::chrono::steady_clock::now() >= deadline) {
        return false;
      }
      usleep(tries < 20 ? 10 : 1000);
    }
  }
  return true;
}

void count_capture(int change) noexcept { captures.fetch_add(change, std::memory_order_seq_cst); }

bool has_captures() noexcept { return captures.load(std::memory_order_seq_cst) > 0; }

bool has_waiting_submissions() noexcept { return waiting.load(std::memory_order_seq_cst) != 0; }

void prepare_gate(void (*listener)() noexcept) noexcept {
  const bool has_membarrier =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  needs_fence.store(!has_membarrier, std::memory_order_seq_cst);
  on_waiting.store(listener, std::memory_order_release);
}

void forget_gate() noexcept {
  for (gate_line& line : lines) {
    line.inside.store(0, std::memory_order_relaxed);
    for (auto& count : line.counts) {
      count.store(0, std::memory_order_relaxed);
    }
  }
  closed_queues.store(0, std::memory_order_relaxed);
  waiting.store(0, std::memory_order_relaxed);
  captures.store(0, std::memory_order_relaxed);
  on_waiting.store(nullptr, std::memory_order_relaxed);
  the_opening.forget();
}

}  // namespace gdev

#include "interposer/gate.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <mutex>

#include "base/endless.hpp"
#include "base/uncancelled.hpp"

namespace gdev {

namespace {

/** What a thread writes at each call; on a cache line of its own, as no other thread writes it. */
struct alignas(64) gate_line {
  std::atomic<std::uint32_t> inside{0};
  std::array<std::atomic<std::uint64_t>, works> counts{};
};

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

/** Holds a line for as long as its thread lives. */
class line_holder {
 public:
  line_holder() noexcept {
    for (std::size_t i = 0; i < own_lines; ++i) {
      // Acquire, with the release below: the counts of the thread that had the line before.
      if (!taken[i].exchange(true, std::memory_order_acquire)) {
        index_ = i;
        return;
      }
    }
  }
  line_holder(const line_holder&) = delete;
  line_holder& operator=(const line_holder&) = delete;
  ~line_holder() {
    if (index_ < own_lines) {
      // A call later in the thread's end uses the shared line.
      const std::size_t index = index_;
      index_ = own_lines;
      taken[index].store(false, std::memory_order_release);
    }
  }

  [[nodiscard]] std::size_t index() const noexcept { return index_; }

 private:
  std::size_t index_ = own_lines;
};

thread_local line_holder holder;

/** Adds to a count that no other thread changes, unless the line is shared. */
template <typename Number>
Number add(std::atomic<Number>& count, Number change, bool is_shared,
           std::memory_order order) noexcept {
  if (is_shared) {
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
  return (closed_queues.load(std::memory_order_relaxed) >> static_cast<unsigned>(queue_of(kind)) &
          1U) != 0;
}

void count_call(work kind, bool is_shared) noexcept {
  // Not before it has passed: a move must not take it for work that was there before.
  add<std::uint64_t>(lines[holder.index()].counts[static_cast<std::size_t>(kind)], 1, is_shared,
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
  if (waiting.fetch_add(1, std::memory_order_seq_cst) == 0) {
    tell_listener();
  }
  wait_end how = wait_end::open;
  bool is_last = false;
  {
    opening& of = the_opening.get();
    std::unique_lock lock(of.mutex);
    of.changed.wait(lock, [&] {
      return !is_closed(kind) || of.calls != 0 || (is_parking_enough && of.is_parked);
    });
    if (is_parking_enough && of.is_parked) {
      how = wait_end::parked;
      ++of.passes;
    } else if (is_closed(kind)) {
      how = wait_end::let_pass;
      is_last = --of.calls == 0;
      // Before the lock is given back: whoever ends this by let_pass() sees that it is inside.
      const bool is_shared = holder.index() == own_lines;
      add<std::uint32_t>(lines[holder.index()].inside, 1, is_shared, std::memory_order_relaxed);
      count_call(kind, is_shared);
    }
  }
  waiting.fetch_sub(1, std::memory_order_seq_cst);
  if (is_last) {
    tell_listener();
  }
  return how;
}

/** Passes the gate, and returns true, or returns false: it is closed. */
bool enter(work kind) noexcept {
  const bool is_shared = holder.index() == own_lines;
  std::atomic<std::uint32_t>& inside = lines[holder.index()].inside;
  const std::uint32_t outer = add<std::uint32_t>(inside, 1, is_shared, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (needs_fence.load(std::memory_order_relaxed)) [[unlikely]] {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // An outer submission of this thread keeps the gate from being passed by the other side.
  if (!is_closed(kind) || (outer != 0 && !is_shared)) [[likely]] {
    count_call(kind, is_shared);
    return true;
  }
  add<std::uint32_t>(inside, ~std::uint32_t{0}, is_shared, std::memory_order_release);
  return false;
}

}  // namespace

submission::submission(passed /*unused*/) noexcept
    : inside_(lines[holder.index()].inside), is_shared_(holder.index() == own_lines) {}

submission::submission(work kind) noexcept : submission(passed{}) {
  while (!enter(kind) && wait_until_open(kind, false) == wait_end::open) {
  }
}

// Release: the closing side sees all that the call did.
submission::~submission() {
  add<std::uint32_t>(inside_, ~std::uint32_t{0}, is_shared_, std::memory_order_release);
}

memory_pass::memory_pass() noexcept : on_gpu_(std::nullopt) {
  wait_end how = wait_end::open;
  while (how == wait_end::open) {
    how = enter(work::other) ? wait_end::let_pass : wait_until_open(work::other, true);
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

#include "backend/closing_thread.hpp"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "backend/table_calls.hpp"

namespace gpufs {
namespace {

constexpr std::chrono::seconds answer_time{1};
constexpr std::uint64_t answer_ns = std::chrono::nanoseconds(answer_time).count();

}  // namespace

struct closing_thread::shared_state {
  enum class phase { takes_table, waits, closes, has_closed };
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  phase is = phase::takes_table;
  bool ends = false;
  bool has_table = false;
  int descriptor = -1;
  long owner = 0;                  // the thread that asks
  int not_copied = 0, closed = 0;  // the results: -errno, or 0
};

closing_thread::closing_thread() : owner_(getpid()) {
  try {
    auto state = std::make_shared<shared_state>();
    thread_.start("closing", [state] { run(*state); });
    state_ = state;
    std::unique_lock lock(state->mutex);
    (void)state->changed.wait_for(lock, answer_time,
                                  [&] { return state->is != shared_state::phase::takes_table; });
  } catch (const std::exception&) {
    // No thread or memory: close_copy() returns -EAGAIN.
  }
}

closing_thread::~closing_thread() {
  if (state_ == nullptr) return;
  if (getpid() == owner_) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->ends = true;
      state_->changed.notify_all();
    }
    if (thread_.wait_until(deadline::after(answer_ns))) return;
  }
  thread_.leave();
}

int closing_thread::close_copy(int descriptor, int& closed) {
  using phase = shared_state::phase;
  if (state_ == nullptr) return -EAGAIN;
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, answer_time, [&] { return state_->is == phase::waits; }))
    return -EAGAIN;
  if (!state_->has_table) return -EAGAIN;
  state_->descriptor = descriptor;
  state_->owner = syscall(SYS_gettid);
  state_->is = phase::closes;
  state_->changed.notify_all();
  state_->changed.wait(lock, [&] { return state_->is == phase::has_closed; });
  state_->is = phase::waits;
  state_->changed.notify_all();
  closed = state_->closed;
  return state_->not_copied;
}

void closing_thread::run(shared_state& state) {
  using phase = shared_state::phase;
  const bool has_table = take_own_table();
  if (has_table) give_up_streams();
  std::unique_lock lock(state.mutex);
  state.has_table = has_table;
  for (state.is = phase::waits;;) {
    state.changed.notify_all();
    state.changed.wait(lock, [&] { return state.is == phase::closes || state.ends; });
    if (state.is != phase::closes) return;
    const int descriptor = state.descriptor;
    const long owner = state.owner;
    lock.unlock();
    int copy = copy_of(owner, descriptor);
    if (copy == -EINVAL) copy = copy_of(0, descriptor);  // the table of both, before Linux 6.9
    const int closed = copy < 0 || syscall(SYS_close, copy) == 0 ? 0 : -errno;
    lock.lock();
    state.not_copied = std::min(copy, 0);
    state.closed = closed;
    state.is = phase::has_closed;
  }
}

}  // namespace gpufs

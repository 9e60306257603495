#include "simulated/stream.hpp"

#include <atomic>
#include <new>
#include <utility>

namespace gdev::simulated {

std::uint64_t stream::next_number() noexcept {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

stream::~stream() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::uint64_t stream::submit(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return ++submitted_;
}

std::uint64_t stream::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

bool stream::is_done(std::uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

void stream::wait(std::uint64_t ticket) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

void stream::after_fork_in_child() {
  queue_.clear();
  done_ = submitted_;
  // They have a thread, and its waiting, that is not there: they are made anew, and not ended.
  new (&thread_) std::thread;
  new (&changed_) std::condition_variable;
  mutex_.unlock();
}

void stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !queue_.empty() || is_ending_; });
    if (queue_.empty()) {
      return;
    }
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace gdev::simulated

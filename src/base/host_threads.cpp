#include "base/host_threads.hpp"

#include <errno.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <utility>

#include "gpufs/base/platform.cuh"
#include "gpufs/base/start_thread.hpp"
#include "gpufs/error.hpp"

namespace gpufs {

namespace {

// Returns the time that the process has run, as the checks of deadlines have counted it.
std::uint64_t lived_ns() {
  static std::atomic<std::uint64_t> looked{0}, lived{0};
  const std::uint64_t now = platform::now_ns();
  // Relaxed: plain counters that publish nothing. Two threads that check at the same time may count
  // some nanoseconds twice.
  const std::uint64_t since =
      platform::duration_ns(looked.exchange(now, std::memory_order_relaxed), now);
  const std::uint64_t counted = std::min(since, deadline::look_ns_max);
  return lived.fetch_add(counted, std::memory_order_relaxed) + counted;
}

}  // namespace

deadline deadline::after(std::uint64_t ns) {
  const std::uint64_t now = lived_ns();
  return deadline(ns > never - now ? never : now + ns);
}

std::uint64_t deadline::left_ns() const {
  const std::uint64_t now = lived_ns();
  return end_ns_ == never ? never : end_ns_ > now ? end_ns_ - now : 0;
}

deadline deadline::or_after(std::uint64_t ns) const {
  return deadline(std::min(end_ns_, after(ns).end_ns_));
}

host_threads::~host_threads() { (void)wait_until(deadline::after(deadline::never)); }

void host_threads::start(const char* what, std::function<void()> body) {
  threads_.reserve(threads_.size() + 1);
  auto counted = [progress = progress_, body = std::move(body)] {
    body();
    const std::lock_guard lock(progress->mutex);
    --progress->running;
    progress->ended.notify_all();
  };
  {
    const std::lock_guard lock(progress_->mutex);
    ++progress_->running;
  }
  const auto take_back = [this] {
    const std::lock_guard lock(progress_->mutex);
    --progress_->running;
  };
  try {
    threads_.push_back(start_thread(std::move(counted)));
  } catch (const std::system_error&) {
    take_back();
    throw error(EAGAIN, std::string("no thread for ") + what);
  } catch (...) {
    take_back();
    throw;
  }
}

bool host_threads::wait_until(const deadline& end) {
  if (threads_.empty()) return true;  // also after leave()
  {
    std::unique_lock lock(progress_->mutex);
    while (progress_->running != 0) {
      const std::uint64_t left = end.left_ns();
      if (left == 0) return false;
      (void)progress_->ended.wait_for(lock,
                                      std::chrono::nanoseconds(std::min(left, deadline::look_ns)));
    }
  }
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  return true;
}

void host_threads::leave() noexcept {
  for (std::thread& t : threads_) t.detach();
  threads_.clear();
}

spare_thread::spare_thread(const char* what) {
  thread_.start(what, [job = job_] {
    std::unique_lock lock(job->mutex);
    job->wake.wait(lock, [&] { return job->is_asked; });
    lock.unlock();
    if (job->call != nullptr) job->call(job->argument);
  });
}

spare_thread::~spare_thread() {
  if (!thread_.empty()) ask(nullptr, nullptr);
}

void spare_thread::dismiss() {
  ask(nullptr, nullptr);
  thread_.leave();
}

void spare_thread::ask(void (*call)(void*), void* argument) {
  {
    const std::lock_guard lock(job_->mutex);
    if (job_->is_asked) return;
    job_->is_asked = true;
    job_->call = call;
    job_->argument = argument;
  }
  job_->wake.notify_one();
}

bool spare_thread::run(void (*call)(void*), void* argument, const deadline& end) {
  ask(call, argument);
  if (thread_.wait_until(end)) return true;
  thread_.leave();
  return false;
}

}  // namespace gpufs

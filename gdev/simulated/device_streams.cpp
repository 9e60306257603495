#include "simulated/device_streams.hpp"

#include <chrono>
#include <memory>
#include <utility>

namespace gdev::simulated {

namespace {

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace

CUresult device_streams::create_stream(CUstream* made, bool is_blocking) {
  auto owner = std::make_unique<stream>();
  const std::lock_guard lock(mutex_);
  *made = reinterpret_cast<CUstream>(owner.get());
  (is_blocking ? blocking_ : non_blocking_).insert(owner.release());
  return CUDA_SUCCESS;
}

CUresult device_streams::destroy_stream(CUstream ended) {
  auto* const which = reinterpret_cast<stream*>(ended);
  {
    const std::lock_guard lock(mutex_);
    if (blocking_.erase(which) + non_blocking_.erase(which) == 0) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
  }
  delete which;  // outside of the lock, because it waits
  return CUDA_SUCCESS;
}

stream& device_streams::find(CUstream where, bool is_per_thread) {
  if (where == CU_STREAM_PER_THREAD || (where == nullptr && is_per_thread)) {
    // Never ended: a thread's destructors may run after those of the process.
    static thread_local stream* own = nullptr;
    if (own == nullptr) {
      own = new stream();
      const std::lock_guard lock(mutex_);
      blocking_.insert(own);
    }
    return *own;
  }
  if (where == nullptr || where == CU_STREAM_LEGACY) {
    return default_stream_;
  }
  return *reinterpret_cast<stream*>(where);
}

void device_streams::submit(CUstream where, bool is_per_thread, std::function<void()> work) {
  stream& chosen = find(where, is_per_thread);
  std::vector<std::pair<stream*, std::uint64_t>> earlier;
  const std::lock_guard lock(mutex_);  // all streams see the same order
  if (&chosen == &default_stream_) {
    for (stream* const other : blocking_) {
      earlier.emplace_back(other, other->submitted());
    }
  } else if (blocking_.contains(&chosen)) {
    earlier.emplace_back(&default_stream_, default_stream_.submitted());
  }
  chosen.submit([earlier = std::move(earlier), work = std::move(work)] {
    for (const auto& [other, ticket] : earlier) {
      other->wait(ticket);
    }
    work();
  });
}

std::uint64_t device_streams::number_of(CUstream where, bool is_per_thread) {
  return find(where, is_per_thread).number();
}

void device_streams::wait(CUstream where, bool is_per_thread) {
  const stream& chosen = find(where, is_per_thread);
  if (&chosen == &default_stream_) {
    // It is done when the blocking streams' earlier work is.
    submit(where, is_per_thread, [] {});
  }
  chosen.wait(chosen.submitted());
}

bool device_streams::is_idle(CUstream where, bool is_per_thread) {
  const stream& chosen = find(where, is_per_thread);
  return chosen.is_done(chosen.submitted());
}

std::vector<std::pair<stream*, std::uint64_t>> device_streams::all_work() {
  std::vector<std::pair<stream*, std::uint64_t>> all;
  const std::lock_guard lock(mutex_);
  all.emplace_back(&default_stream_, default_stream_.submitted());
  for (const std::set<stream*>* streams : {&blocking_, &non_blocking_}) {
    for (stream* const one : *streams) {
      all.emplace_back(one, one->submitted());
    }
  }
  return all;
}

void device_streams::wait_for_all() {
  for (const auto& [one, ticket] : all_work()) {
    one->wait(ticket);
  }
}

void device_streams::record_all(event& which) {
  const std::uint64_t ticket = watcher_.submit([all = all_work()] {
    for (const auto& [one, last] : all) {
      one->wait(last);
    }
  });
  const std::lock_guard lock(which.mutex);
  which.recorded_in = &watcher_;
  which.ticket = ticket;
}

void device_streams::record(event& which, CUstream where, bool is_per_thread) {
  stream& chosen = find(where, is_per_thread);
  const auto at_ns = std::make_shared<std::uint64_t>(0);
  submit(where, is_per_thread, [at_ns] { *at_ns = now_ns(); });
  const std::lock_guard lock(which.mutex);
  which.recorded_in = &chosen;
  which.ticket = chosen.submitted();
  which.at_ns = at_ns;
}

void device_streams::wait_in(CUstream where, bool is_per_thread, event& which) {
  stream* recorded_in = nullptr;
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(which.mutex);
    recorded_in = which.recorded_in;
    ticket = which.ticket;
  }
  if (recorded_in != nullptr && recorded_in != &find(where, is_per_thread)) {
    submit(where, is_per_thread, [recorded_in, ticket] { recorded_in->wait(ticket); });
  }
}

void device_streams::before_fork() {
  mutex_.lock();
  default_stream_.before_fork();
  watcher_.before_fork();
}

void device_streams::after_fork_in_parent() {
  watcher_.after_fork_in_parent();
  default_stream_.after_fork_in_parent();
  mutex_.unlock();
}

void device_streams::after_fork_in_child() {
  watcher_.after_fork_in_child();
  default_stream_.after_fork_in_child();
  mutex_.unlock();
}

}  // namespace gdev::simulated

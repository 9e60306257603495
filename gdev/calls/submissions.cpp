#include "calls/submissions.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace gdev::calls {

namespace {

using std::chrono::steady_clock;

/** Waits until an event has happened, or the time is over. */
CUresult wait_until(CUevent which, std::chrono::nanoseconds timeout) noexcept {
  constexpr std::chrono::nanoseconds longest_pause = std::chrono::milliseconds(1);
  const steady_clock::time_point begin = steady_clock::now();
  std::chrono::nanoseconds pause = std::chrono::microseconds(10);
  while (true) {
    const CUresult result = driver().cuEventQuery(which);
    const auto left = timeout - (steady_clock::now() - begin);
    if (result != CUDA_ERROR_NOT_READY || left <= std::chrono::nanoseconds::zero()) {
      return result;
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, left));
    pause = std::min(2 * pause, longest_pause);
  }
}

}  // namespace

int submissions::begin() noexcept {
  return error_of(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
}

int submissions::end() noexcept {
  const int error = wait_for_all();
  pending_.clear();
  const CUresult result = driver().cuStreamDestroy(std::exchange(stream_, nullptr));
  return error != 0 ? error : error_of(result);
}

int submissions::make_event(event_pointer& made) noexcept {
  CUevent end = nullptr;
  const CUresult result =
      driver().cuEventCreate(&end, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  if (result == CUDA_SUCCESS) {
    made = event_pointer(end, destroy_event{});
  }
  return error_of(result);
}

int submissions::record(event_pointer end, std::uint64_t& id) noexcept {
  if (const CUresult result = driver().cuEventRecord(end.get(), stream_); result != CUDA_SUCCESS) {
    return error_of(result);
  }
  const std::lock_guard lock(pending_mutex_);
  while (!pending_.empty() && driver().cuEventQuery(pending_.front().end.get()) == CUDA_SUCCESS) {
    pending_.pop_front();
  }
  id = ++last_id_;
  pending_.push_back({id, std::move(end)});
  return 0;
}

int submissions::wait_for_all() noexcept { return error_of(driver().cuStreamSynchronize(stream_)); }

int submissions::wait_for(std::uint64_t id, std::int64_t timeout_ns) noexcept {
  event_pointer end;
  {
    const std::lock_guard lock(pending_mutex_);
    if (id == 0 || id > last_id_) {
      return -EINVAL;
    }
    const auto found = std::find_if(pending_.begin(), pending_.end(),
                                    [id](const work& one) { return one.id == id; });
    if (found == pending_.end()) {
      return 0;
    }
    end = found->end;
  }
  const CUresult result = timeout_ns < 0
                              ? driver().cuEventSynchronize(end.get())
                              : wait_until(end.get(), std::chrono::nanoseconds(timeout_ns));
  return result == CUDA_ERROR_NOT_READY ? -ETIMEDOUT : error_of(result);
}

}  // namespace gdev::calls

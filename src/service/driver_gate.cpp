#include "service/driver_gate.hpp"

#include <chrono>

#include "gpufs/base/platform.cuh"

namespace gpufs {

bool driver_gate::enter(unsigned thread, const request_name& name) {
  {
    std::unique_lock lock(mutex_);
    const auto decided = [&] { return refuses() || !rules_.exclusive || inside_ == 0; };
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(rules_.limits.call_ns), decided) ||
        refuses())
      return false;
    calls_[thread] = {true, false, platform::now_ns(), name};
    ++inside_;
  }
  GPUFS_SCHEDULE_POINT("service.driver");
  return true;
}

void driver_gate::leave(unsigned thread) {
  {
    const std::lock_guard lock(mutex_);
    if (calls_[thread].stalled) --stalled_;
    closed_.store(refuses(), std::memory_order_relaxed);
    calls_[thread] = {};
    --inside_;
  }
  changed_.notify_one();
}

void driver_gate::set_engine_stuck(bool stuck) {
  {
    const std::lock_guard lock(mutex_);
    engine_stuck_ = stuck;
    closed_.store(refuses(), std::memory_order_relaxed);
  }
  if (stuck) changed_.notify_all();
}

bool driver_gate::find_stalled_calls(std::vector<request_name>& found) {
  const std::lock_guard lock(mutex_);
  for (call& c : calls_) {
    if (!c.inside || c.stalled || platform::elapsed_ns(c.since_ns) <= rules_.limits.call_ns)
      continue;
    found.push_back(c.name);
    c.stalled = true;
    ++stalled_;
  }
  if (!found.empty()) changed_.notify_all();
  closed_.store(refuses(), std::memory_order_relaxed);
  return refuses();
}

}  // namespace gpufs

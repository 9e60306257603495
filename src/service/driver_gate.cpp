#include "service/driver_gate.hpp"

#include <chrono>

#include "gpufs/base/platform.cuh"

namespace gpufs {

bool driver_gate::enter(unsigned thread, const request_name& name) {
  {
    std::unique_lock lock(mutex_);
    const auto decided = [&] { return stalled_ != 0 || !exclusive_ || inside_ == 0; };
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(call_ns_max), decided) || stalled_ != 0) return false;
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
    calls_[thread] = {};
    --inside_;
  }
  changed_.notify_one();
}

bool driver_gate::find_stalled(std::vector<request_name>& found) {
  const std::lock_guard lock(mutex_);
  for (call& c : calls_) {
    if (!c.inside || c.stalled || platform::elapsed_ns(c.since_ns) <= call_ns_max) continue;
    found.push_back(c.name);
    c.stalled = true;
    ++stalled_;
  }
  if (!found.empty()) changed_.notify_all();
  return stalled_ != 0;
}

}  // namespace gpufs

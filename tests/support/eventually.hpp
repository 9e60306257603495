// Waits for an action of another thread.
#pragma once

#include <chrono>
#include <thread>

namespace gpufs::testing {

// Returns true as soon as the condition holds, false if it does not hold after `limit`. The limit
// is generous: it only bounds a failing test.
template <class Condition>
bool eventually(const Condition& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace gpufs::testing

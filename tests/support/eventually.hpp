// Waiting for what another thread is about to do.
#pragma once

#include <chrono>
#include <thread>

namespace gpufs::testing {

// True as soon as the condition is, false when it still is not after `limit`, which is generous: it
// only bounds a failing test.
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

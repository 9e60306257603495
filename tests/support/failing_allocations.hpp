// Allocations of the library that fail. Replaces operator new in the program that uses it.
#pragma once

#include <cstdint>

namespace gpufs::testing {

// While it lives, the `nth` allocation by operator new fails, counted from 1: of the thread that made this object, or of all
// other threads. One at a time.
class failing_allocation {
 public:
  enum class of { this_thread, other_threads };
  failing_allocation(of whom, std::uint64_t nth);
  ~failing_allocation();
  failing_allocation(const failing_allocation&) = delete;
  failing_allocation& operator=(const failing_allocation&) = delete;
  bool has_struck() const;
};

}  // namespace gpufs::testing

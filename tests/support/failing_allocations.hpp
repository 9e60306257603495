// Allocations of the library that fail. Replaces operator new in the program that uses it.
#pragma once

#include <cstdint>

namespace gpufs::testing {

// While it lives, the `nth` allocation by operator new fails, counted from 1, and if asked for all
// after it: of the thread that made this object, of all other threads, or of all but own_thread()s.
// nth 0: none fails. One at a time.
class failing_allocation {
 public:
  enum class of { this_thread, other_threads, all_threads };
  failing_allocation(of whom, std::uint64_t nth, bool for_ever = false);
  ~failing_allocation();
  failing_allocation(const failing_allocation&) = delete;
  failing_allocation& operator=(const failing_allocation&) = delete;
  // None fails from now on.
  void stop();
  bool has_struck() const;
  // Allocations that may have failed so far.
  std::uint64_t count() const;
};

// Whether what the calling thread does is the test's own (support/failing_calls.hpp). False at
// first.
bool& own_thread();

}  // namespace gpufs::testing

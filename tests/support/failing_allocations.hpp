// Makes allocations of the library fail. Replaces operator new in the program that uses it.
#pragma once

#include <cstdint>

namespace gpufs::testing {

// During its lifetime the `nth` allocation by operator new fails, counted from 1, and with
// `for_ever` all later ones. `whom` selects the threads: the thread that made this object, all
// other threads, or all threads except those with own_thread() set. nth 0: none fails. One object
// at a time.
class failing_allocation {
 public:
  enum class of { this_thread, other_threads, all_threads };
  failing_allocation(of whom, std::uint64_t nth, bool for_ever = false);
  ~failing_allocation();
  failing_allocation(const failing_allocation&) = delete;
  failing_allocation& operator=(const failing_allocation&) = delete;
  // No allocation fails from now on.
  void stop();
  bool has_struck() const;
  // Allocations so far that were candidates for failure.
  std::uint64_t count() const;
};

// Whether the calling thread's actions belong to the test itself (support/failing_calls.hpp). False
// at first.
bool& own_thread();

}  // namespace gpufs::testing

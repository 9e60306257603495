// Makes system calls, allocations and thread starts of the library fail. The test program is linked
// with --wrap for the system calls (tests/CMakeLists.txt names them). So nothing is replaced in the
// library, and a test without a failing_calls object runs the real calls.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "support/failing_allocations.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {

// Something that can fail. The names are those of C library functions. What the library calls by
// syscall(2) has the name of the function that exists, or would exist.
struct failing_kind {
  std::string_view name;
  // Each error that may occur. done_in_part: a transfer of half the bytes.
  std::span<const int> errors;
};
inline constexpr int done_in_part = -1;

inline constexpr std::string_view operator_new = "operator new", thread_start = "thread start";

// All kinds, including operator_new and thread_start.
std::span<const failing_kind> failing_kinds();

// During its lifetime calls of one kind fail: the nth, counted from 1, and with `for_ever` all
// later ones. Calls of all threads count, except under an own_calls object. Syncs do not wait for a
// disk. One object at a time, and no failing_allocation or schedule_hook at the same time.
class failing_calls {
 public:
  // nth 0: none fails, and all are counted.
  failing_calls(std::string_view kind, std::uint64_t nth, bool for_ever, int error);
  // Repeats each munmap(2) that failed on purpose.
  ~failing_calls();
  failing_calls(const failing_calls&) = delete;
  failing_calls& operator=(const failing_calls&) = delete;

  // No more calls fail from now on; or after the first `calls` of the kind.
  void stop();
  void stop_after(std::uint64_t calls);

  bool has_struck() const;
  // Failed calls of a kind, and all its calls, since the last failing_calls was made.
  static std::uint64_t strikes_on(std::string_view kind);
  static std::uint64_t count_of(std::string_view kind);

 private:
  const schedule_hook threads_;
};

// During its lifetime the calling thread's calls belong to the test: they neither fail nor count.
class own_calls {
 public:
  own_calls();
  ~own_calls();
  own_calls(const own_calls&) = delete;
  own_calls& operator=(const own_calls&) = delete;

 private:
  const bool before_;
};

}  // namespace gpufs::testing

// System calls, allocations and starts of threads of the library that fail. The test program is
// linked with --wrap for the system calls (tests/CMakeLists.txt names them), so nothing is replaced
// in the library, and a test without a failing_calls runs the real ones.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "support/failing_allocations.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {

// Something that can fail. The names are those of the functions of the C library; what the library
// calls by syscall(2) has the name of the function that there is, or would be.
struct failing_kind {
  std::string_view name;
  // Each error that may come. done_in_part: a transfer of half the bytes.
  std::span<const int> errors;
};
inline constexpr int done_in_part = -1;

inline constexpr std::string_view operator_new = "operator new", thread_start = "thread start";

// All kinds, operator_new and thread_start among them.
std::span<const failing_kind> failing_kinds();

// As long as it lives, calls of one kind fail: the nth, counted from 1, and if asked for all that
// come after it. Calls of all threads count but for those of an own_calls. No disk is waited for.
// One at a time, and no other failing_allocation or schedule_hook beside it.
class failing_calls {
 public:
  // nth 0: none fails, and all are counted.
  failing_calls(std::string_view kind, std::uint64_t nth, bool for_ever, int error);
  // Makes up for each munmap(2) that did nothing.
  ~failing_calls();
  failing_calls(const failing_calls&) = delete;
  failing_calls& operator=(const failing_calls&) = delete;

  // No more calls fail from now on.
  void stop();

  bool has_struck() const;
  // Calls of a kind that failed, and calls in all, since it was made.
  static std::uint64_t strikes_on(std::string_view kind);
  static std::uint64_t count_of(std::string_view kind);

 private:
  const schedule_hook threads_;
};

// As long as it lives, the calling thread's calls are the test's own: they neither fail nor count.
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

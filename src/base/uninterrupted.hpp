// Retries calls that a signal interrupts.
#pragma once

#include <errno.h>

namespace gpufs {

// A file system may say so for ever, though no signal comes.
inline constexpr unsigned interruptions_max = 10'000;

// Repeats `call` while it returns -EINTR. Returns its result: >= 0 or -errno. -EIO when it has been
// interrupted `interruptions_max` times.
template <class Call>
auto uninterrupted(const Call& call) {
  for (unsigned i = 0; i < interruptions_max; ++i) {
    const auto result = call();
    if (result != -EINTR) return result;
  }
  return decltype(call())(-EIO);
}

}  // namespace gpufs

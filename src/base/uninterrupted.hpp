// Calls that a signal may interrupt.
#pragma once

#include <errno.h>

namespace gpufs {

// What a call gives, >= 0 or -errno, when no signal interrupts it.
template <class Call>
int uninterrupted(const Call& call) {
  int result = 0;
  do {
    result = call();
  } while (result == -EINTR);
  return result;
}

}  // namespace gpufs

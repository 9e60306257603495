// Retries calls that a signal interrupts.
#pragma once

#include <errno.h>

namespace gpufs {

// Repeats `call` while it returns -EINTR. Returns its result: >= 0 or -errno.
template <class Call>
int uninterrupted(const Call& call) {
  int result = 0;
  do {
    result = call();
  } while (result == -EINTR);
  return result;
}

}  // namespace gpufs

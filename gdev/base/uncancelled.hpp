/** Keeps pthread_cancel() from unwinding through what must be finished. */
#pragma once

#include <pthread.h>

namespace gdev {

class uncancelled {
 public:
  uncancelled() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  uncancelled(const uncancelled&) = delete;
  uncancelled& operator=(const uncancelled&) = delete;
  ~uncancelled() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = 0;
};

}  // namespace gdev

// Keeps the program's signals out of the library's threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace gpufs {

// While it exists, the calling thread receives only the signals that it raises itself. Threads that
// it creates inherit the mask for their lifetime. So the program's handlers run only in the
// program's threads, and a signal that the program has blocked in all of them stays pending.
// SIGXFSZ is blocked, so exceeding a file-size limit is an error of the write.
class blocked_signals {
 public:
  blocked_signals() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
      sigdelset(&all, own);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~blocked_signals() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  blocked_signals(const blocked_signals&) = delete;
  blocked_signals& operator=(const blocked_signals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace gpufs

// Threads of the library get none of the program's signals.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace gpufs {

// While it lives, the calling thread gets no signals but those that it brings upon itself, nor do
// threads that it makes, for good: a thread begins with its maker's mask. So a handler of the
// program runs in the program's threads only, and a signal that the program has blocked in all of
// them stays pending. SIGXFSZ is blocked, so that a limit of file size is an error of the write.
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

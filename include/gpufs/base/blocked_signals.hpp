// Keeps the program's signals out of the library's threads.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

namespace gpufs {

// While it exists, the calling thread receives only the signals that it raises itself. Threads that
// it creates inherit the mask for their lifetime. So the program's handlers run only in the
// program's threads, and a signal that the program has blocked in all of them stays pending.
// SIGXFSZ is blocked, so exceeding a file-size limit is an error of the write. The destructor
// discards a SIGXFSZ or SIGPIPE of the thread's own writes, unless one was pending before.
class blocked_signals {
 public:
  blocked_signals() {
    (void)sigpending(&pending_before_);
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
      sigdelset(&all, own);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~blocked_signals() {
    for (const int of_writes : {SIGXFSZ, SIGPIPE}) discard(of_writes);
    (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  blocked_signals(const blocked_signals&) = delete;
  blocked_signals& operator=(const blocked_signals&) = delete;

 private:
  void discard(int number) const {
    if (sigismember(&pending_before_, number) == 1) return;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    siginfo_t info;
    const timespec at_once{0, 0};
    // The thread's own signals come first. One that another process sent is the program's.
    if (sigtimedwait(&one, &info, &at_once) == number && info.si_pid != getpid())
      (void)kill(getpid(), number);
  }

  sigset_t before_, pending_before_;
};

}  // namespace gpufs

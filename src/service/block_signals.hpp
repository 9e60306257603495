// Threads of the library get none of the program's signals.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace gpufs {

// By the calling thread: all but those that a thread brings upon itself. SIGXFSZ is blocked, so that a limit of file size is
// an error of the write.
inline void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, own);
  (void)pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace gpufs

/** Threads of gdev in a program. */
#pragma once

#include <pthread.h>

#include <csignal>

namespace gdev {

/**
 * Starts a thread that ends with the process. The program's signals are not for it, nor for the
 * threads that it starts. Returns false if there are no more threads.
 */
inline bool start_own_thread(const char* name, void* (*run)(void*),
                             void* argument = nullptr) noexcept {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool is_made = pthread_create(&thread, nullptr, run, argument) == 0;
  if (is_made) {
    pthread_setname_np(thread, name);
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_made;
}

}  // namespace gdev

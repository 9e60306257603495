// In the place of what the C library has to start threads, to wait and to ask for the time,
// and of what C++ has for random numbers: for a thread of a simulation
// the scheduler's, for all others the C library's. Not with sanitizers, which do the same.
#include "simulation/real_calls.hpp"

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "simulation/scheduler_calls.hpp"

namespace gpufs::testing {
namespace {

template <class Function>
void find(Function*& function, const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "simulation: the C library has no %s\n", name);
    std::abort();
  }
  function = reinterpret_cast<Function*>(found);
}

real_functions functions;
std::atomic<bool> are_found{false};

// Several threads may do so at once: all find the same.
void find_all() {
  real_functions f{};
#define GPUFS_FIND(name) find(f.name, #name)
  GPUFS_FIND(pthread_create);
  GPUFS_FIND(pthread_join);
  GPUFS_FIND(pthread_mutex_lock);
  GPUFS_FIND(pthread_mutex_trylock);
  GPUFS_FIND(pthread_mutex_unlock);
  GPUFS_FIND(pthread_rwlock_rdlock);
  GPUFS_FIND(pthread_rwlock_tryrdlock);
  GPUFS_FIND(pthread_rwlock_wrlock);
  GPUFS_FIND(pthread_rwlock_trywrlock);
  GPUFS_FIND(pthread_rwlock_unlock);
  GPUFS_FIND(pthread_cond_wait);
  GPUFS_FIND(pthread_cond_timedwait);
  GPUFS_FIND(pthread_cond_clockwait);
  GPUFS_FIND(pthread_cond_signal);
  GPUFS_FIND(pthread_cond_broadcast);
  GPUFS_FIND(clock_gettime);
  GPUFS_FIND(nanosleep);
  GPUFS_FIND(clock_nanosleep);
  GPUFS_FIND(sched_yield);
  GPUFS_FIND(syscall);
  find(f.random_number, "_ZNSt13random_device9_M_getvalEv");
#undef GPUFS_FIND
  functions = f;
  are_found.store(true, std::memory_order_release);
}

// Before the program has threads or handlers of signals.
[[gnu::constructor(101)]] void find_early() { find_all(); }

using scheduling::is_simulated;
using scheduling::never;

std::uint64_t in_ns(const timespec& t) {
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(t.tv_nsec);
}
timespec in_timespec(std::uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

template <class Try>
int lock(const void* object, const Try& try_lock) {
  scheduling::now_ns();  // a point
  for (;;) {
    const int e = try_lock();
    if (e != EBUSY) return e;
    (void)scheduling::wait_for(object, never);
  }
}
int unlock_mutex(pthread_mutex_t* mutex) {
  const int e = real_calls().pthread_mutex_unlock(mutex);
  scheduling::wake(mutex, ~0u);
  return e;
}
int wait(pthread_cond_t* condition, pthread_mutex_t* mutex, std::uint64_t until_ns) {
  (void)unlock_mutex(mutex);
  const bool woken = scheduling::wait_for(condition, until_ns);
  (void)lock(mutex, [&] { return real_calls().pthread_mutex_trylock(mutex); });
  return woken || until_ns == never ? 0 : ETIMEDOUT;
}
int sleep(std::uint64_t until_ns) {
  scheduling::sleep_until(until_ns);
  return 0;
}

long wait_for_word(const std::uint32_t* word, std::uint32_t value, const timespec* timeout) {
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
    errno = EAGAIN;
    return -1;
  }
  const std::uint64_t until_ns =
      timeout == nullptr ? never : scheduling::now_ns() + in_ns(*timeout);
  // now_ns() is a point: another thread may have changed the word there.
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value && scheduling::wait_for(word, until_ns))
    return 0;
  errno = EAGAIN;
  return -1;
}

}  // namespace

const real_functions& real_calls() {
  if (!are_found.load(std::memory_order_acquire)) find_all();
  return functions;
}

}  // namespace gpufs::testing

using namespace gpufs::testing;

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  return is_simulated() ? scheduling::start_thread(thread, attributes, body, argument)
                        : real_calls().pthread_create(thread, attributes, body, argument);
}
int pthread_join(pthread_t thread, void** result) {
  return is_simulated() ? scheduling::join_thread(thread, result)
                        : real_calls().pthread_join(thread, result);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!is_simulated()) return real_calls().pthread_mutex_lock(mutex);
  return lock(mutex, [&] { return real_calls().pthread_mutex_trylock(mutex); });
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  return is_simulated() ? unlock_mutex(mutex) : real_calls().pthread_mutex_unlock(mutex);
}
int pthread_rwlock_rdlock(pthread_rwlock_t* mutex) noexcept {
  if (!is_simulated()) return real_calls().pthread_rwlock_rdlock(mutex);
  return lock(mutex, [&] { return real_calls().pthread_rwlock_tryrdlock(mutex); });
}
int pthread_rwlock_wrlock(pthread_rwlock_t* mutex) noexcept {
  if (!is_simulated()) return real_calls().pthread_rwlock_wrlock(mutex);
  return lock(mutex, [&] { return real_calls().pthread_rwlock_trywrlock(mutex); });
}
int pthread_rwlock_unlock(pthread_rwlock_t* mutex) noexcept {
  const int e = real_calls().pthread_rwlock_unlock(mutex);
  if (is_simulated()) scheduling::wake(mutex, ~0u);
  return e;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return is_simulated() ? wait(condition, mutex, never)
                        : real_calls().pthread_cond_wait(condition, mutex);
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* end) {
  return is_simulated() ? wait(condition, mutex, in_ns(*end))
                        : real_calls().pthread_cond_timedwait(condition, mutex, end);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* end) {
  return is_simulated() ? wait(condition, mutex, in_ns(*end))
                        : real_calls().pthread_cond_clockwait(condition, mutex, clock, end);
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (!is_simulated()) return real_calls().pthread_cond_signal(condition);
  scheduling::wake(condition, 1);
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (!is_simulated()) return real_calls().pthread_cond_broadcast(condition);
  scheduling::wake(condition, ~0u);
  return 0;
}

// All clocks are one.
int clock_gettime(clockid_t clock, timespec* to) noexcept {
  if (!is_simulated()) return real_calls().clock_gettime(clock, to);
  *to = in_timespec(scheduling::now_ns());
  return 0;
}
int nanosleep(const timespec* time, timespec* left) {
  return is_simulated() ? gpufs::testing::sleep(scheduling::now_ns() + in_ns(*time))
                        : real_calls().nanosleep(time, left);
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (!is_simulated()) return real_calls().clock_nanosleep(clock, flags, time, left);
  return gpufs::testing::sleep(((flags & TIMER_ABSTIME) != 0 ? 0 : scheduling::now_ns()) +
                               in_ns(*time));
}
int sched_yield() noexcept {
  if (!is_simulated()) return real_calls().sched_yield();
  scheduling::give_way();
  return 0;
}

long syscall(long number, ...) noexcept {
  std::va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& argument : a) argument = va_arg(rest, long);
  va_end(rest);
  if (is_simulated() && number == SYS_futex) {
    const auto* const word = reinterpret_cast<const std::uint32_t*>(a[0]);
    switch (a[1] & FUTEX_CMD_MASK) {
      case FUTEX_WAIT:
        return wait_for_word(word, static_cast<std::uint32_t>(a[2]),
                             reinterpret_cast<const timespec*>(a[3]));
      case FUTEX_WAKE: scheduling::wake(word, static_cast<unsigned>(a[2])); return 0;
      default: break;
    }
  }
  return real_calls().syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// std::random_device::operator(), as libstdc++ has it.
unsigned interposed_random_number(void* device) asm("_ZNSt13random_device9_M_getvalEv");
unsigned interposed_random_number(void* device) {
  return is_simulated() ? scheduling::random_number() : real_calls().random_number(device);
}

}  // extern "C"
#else
#include <cstdlib>

namespace gpufs::testing {
// There is no simulation to ask for them.
const real_functions& real_calls() { std::abort(); }
}  // namespace gpufs::testing
#endif

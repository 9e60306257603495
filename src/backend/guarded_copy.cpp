#include "backend/guarded_copy.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace gpufs {
namespace {

// The guarded side of a thread's copy, and where the thread continues when a page is missing.
struct guarded_range {
  std::uintptr_t first, bytes;
  sigjmp_buf missing;
};

// A thread that copies has a place here while it lives. The handler finds it by the thread's
// number. It cannot use a thread_local: an access could allocate memory, which a handler must not
// do.
struct place {
  std::atomic<pid_t> thread{0};  // 0: free
  guarded_range* volatile range = nullptr;
};
constexpr std::size_t places_max = 1024;
place places[places_max];

// The calling thread's place; null when too many threads copy.
class own_place {
 public:
  own_place() {
    // A fault with its signal blocked ends the process, whatever the handler. A thread inherits the
    // mask of its creator, so unblock SIGBUS here.
    sigset_t bus_error;
    sigemptyset(&bus_error);
    sigaddset(&bus_error, SIGBUS);
    (void)pthread_sigmask(SIG_UNBLOCK, &bus_error, nullptr);
    const pid_t self = gettid();
    for (place& p : places) {
      pid_t nobody = 0;
      if (!p.thread.compare_exchange_strong(nobody, self)) continue;
      place_ = &p;
      return;
    }
  }
  ~own_place() {
    if (place_ != nullptr) place_->thread = 0;
  }
  own_place(const own_place&) = delete;
  own_place& operator=(const own_place&) = delete;
  place* get() const { return place_; }

 private:
  place* place_ = nullptr;
};

place* find_place() {
  const pid_t self = gettid();
  for (place& p : places) {
    if (p.thread.load(std::memory_order_relaxed) == self) return &p;
  }
  return nullptr;
}

// The action before this handler. Written before the handler is installed, never after. `reset`
// says whether a one-shot handler was used up.
struct sigaction previous;
std::atomic<bool> reset{false};  // it had SA_RESETHAND, and was called

void on_bus_error(int number, siginfo_t* info, void* context);

bool in_place() {
  struct sigaction now{};
  return sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == on_bus_error;
}

// One field, with or without SA_SIGINFO.
bool is_handler(const struct sigaction& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

// Whether the signal is a fault of this thread at this instruction. It is not one if a process sent
// it, or if it reports bad memory that no thread has accessed yet.
bool is_fault(const siginfo_t& info) { return info.si_code > 0 && info.si_code != BUS_MCEERR_AO; }

void end_by_default(const siginfo_t& info) {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  (void)sigaction(SIGBUS, &standard, nullptr);
  // Raised SIGBUS stays blocked until this handler returns. A fault needs no raise: the instruction
  // faults again, and a dump then shows its address.
  if (!is_fault(info) || info.si_code == SI_KERNEL) (void)raise(SIGBUS);
}

void call_previous(int number, siginfo_t* info, void* context) {
  if (!is_handler(previous)) {
    // The kernel does not let a thread ignore its own fault either.
    if (previous.sa_handler == SIG_DFL || is_fault(*info)) end_by_default(*info);
    return;
  }
  if ((previous.sa_flags & SA_RESETHAND) != 0 && reset.exchange(true)) {
    end_by_default(*info);
    return;
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0) previous.sa_sigaction(number, info, context);
  else previous.sa_handler(number);
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  place* const here = find_place();
  guarded_range* const range = here == nullptr ? nullptr : here->range;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (range == nullptr || !is_fault(*info) || address - range->first >= range->bytes) {
    call_previous(number, info, context);
    return;
  }
  here->range = nullptr;
  // Restore the signal mask, as the return of a handler does.
  (void)pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
  siglongjmp(range->missing, 1);
}

bool put_in_place() {
  // Keep this library loaded from now on: the handler is a part of it.
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&on_bus_error), &self) != 0 && self.dli_fname != nullptr)
    (void)dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);

  if (sigaction(SIGBUS, nullptr, &previous) != 0) return false;
  // Keep the mask, stack and flags that the previous handler wants, because this one calls it.
  struct sigaction mine = previous;
  if (!is_handler(previous)) {
    mine.sa_flags = SA_ONSTACK | SA_RESTART;
    sigemptyset(&mine.sa_mask);
  }
  mine.sa_flags = (mine.sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
  mine.sa_sigaction = on_bus_error;
  return sigaction(SIGBUS, &mine, nullptr) == 0;
}

}  // namespace

bool guard_copies() noexcept {
  static const bool installed = put_in_place();
  return installed && in_place();
}

bool copies_are_guarded() noexcept {
  struct {
    timespec when{};
    bool guarded = false;
  } static thread_local last;
  timespec now{};
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // no system call
  if (now.tv_nsec != last.when.tv_nsec || now.tv_sec != last.when.tv_sec) {
    last.when = now;
    last.guarded = guard_copies();
  }
  return last.guarded;
}

bool copy_guarded(char* to, const char* from, std::size_t bytes, guarded side) noexcept {
  static thread_local const own_place own;
  place* const here = own.get();
  if (here == nullptr) return false;
  guarded_range range;
  range.first = reinterpret_cast<std::uintptr_t>(side == guarded::source ? from : to);
  range.bytes = bytes;
  // Does not save the signal mask, which would be a system call. The handler restores it.
  if (sigsetjmp(range.missing, 0) != 0) return false;
  here->range = &range;
  // Signal fences: keep the copy between the two stores. The handler runs in this thread, so only
  // the compiler could move it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  here->range = nullptr;
  return true;
}

}  // namespace gpufs

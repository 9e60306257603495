#include "backend/guarded_copy.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace gpufs {
namespace {

// What a thread copies from, and where it goes on when that is not there.
struct guarded_range {
  std::uintptr_t first, bytes;
  sigjmp_buf missing;
};

// Initial-exec: the handler must not be the first to ask for this thread's copy of it, which could allocate memory.
[[gnu::tls_model("initial-exec")]] thread_local guarded_range* volatile guarded_now = nullptr;

// What was there before. Written before the handler is in place, then only by an exchange of `reset`.
struct sigaction previous;
std::atomic<bool> reset{false};  // it was SA_RESETHAND, and has been called

void on_bus_error(int number, siginfo_t* info, void* context);

bool in_place() {
  struct sigaction now{};
  return sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error;
}

bool is_handler(const struct sigaction& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;  // one field, with or without SA_SIGINFO
}

// Of this thread, at this instruction: neither a signal that somebody sent, nor news of memory that nobody has touched yet.
bool is_fault(const siginfo_t& info) { return info.si_code > 0 && info.si_code != BUS_MCEERR_AO; }

void end_by_default(const siginfo_t& info) {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  (void)sigaction(SIGBUS, &standard, nullptr);
  // Waits, blocked, until this handler returns. A fault needs none of it: it happens again, and a dump shows its address.
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
  guarded_range* const range = guarded_now;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (range == nullptr || !is_fault(*info) || address - range->first >= range->bytes) {
    call_previous(number, info, context);
    return;
  }
  guarded_now = nullptr;
  // As when a handler returns: what its action blocked is as it was.
  (void)pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
  siglongjmp(range->missing, 1);
}

bool put_in_place() {
  // Never unloaded from now on: the handler is a part of this library.
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&on_bus_error), &self) != 0 && self.dli_fname != nullptr)
    (void)dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);

  if (sigaction(SIGBUS, nullptr, &previous) != 0) return false;
  // Mask, stack and the rest as the one before wants them, because it is called from here.
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

bool copy_guarded(char* to, const char* from, std::size_t bytes) noexcept {
  guarded_range range;
  range.first = reinterpret_cast<std::uintptr_t>(from);
  range.bytes = bytes;
  // Without the signal mask, which would be a system call; the handler sets it.
  if (sigsetjmp(range.missing, 0) != 0) return false;
  guarded_now = &range;
  // The copy stays between the two: the handler runs in this thread, so the compiler is all that could move it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guarded_now = nullptr;
  return true;
}

}  // namespace gpufs

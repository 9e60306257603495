// The program's signals, beside a mount: handlers that were there before it and that come after,
// and masks.
#include <gtest/gtest.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "gpufs/base/blocked_signals.hpp"
#include "guest/guest.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

class guest_signals : public guest {
 protected:
  // A mapping of a file that is not there any more: touching it raises SIGBUS, as the program's own
  // fault.
  const volatile char* make_gone() const {
    const std::string own = folder_.write("own", std::string(8192, 'o'));
    const int fd = ::open(own.c_str(), O_RDWR | O_CLOEXEC);
    const void* const there = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT_NE(there, MAP_FAILED);
    EXPECT_EQ(ftruncate(fd, 0), 0);
    (void)::close(fd);
    return static_cast<const volatile char*>(there);
  }
};
INSTANTIATE_TEST_SUITE_P(in, guest_signals, ::testing::ValuesIn(few_guest_settings()),
                         ::testing::PrintToStringParamName());

// ---- faults of the program's own

sigjmp_buf after_the_fault;
std::atomic<int> faults[NSIG];
std::atomic<const volatile void*> fault_address{nullptr};

void note_fault(int number, siginfo_t* info, void*) {
  ++faults[number];
  fault_address = info->si_addr;
  siglongjmp(after_the_fault, 1);
}

void handle_faults() {
  struct sigaction action{};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = note_fault;
  for (const int number : {SIGSEGV, SIGBUS}) ASSERT_EQ(sigaction(number, &action, nullptr), 0);
}

[[gnu::noinline]] bool touch(const volatile char* address) {
  if (sigsetjmp(after_the_fault, 1) != 0) return false;
  (void)*address;
  return true;
}

void expect_faults(const volatile char* gone, const volatile char* forbidden, int times) {
  EXPECT_FALSE(touch(gone + 17));
  EXPECT_EQ(faults[SIGBUS], times);
  EXPECT_EQ(fault_address, gone + 17);
  EXPECT_FALSE(touch(forbidden + 5));
  EXPECT_EQ(faults[SIGSEGV], times);
  EXPECT_EQ(fault_address, forbidden + 5);
}

const volatile char* make_forbidden() {
  const void* const there = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(there, MAP_FAILED);
  return static_cast<const volatile char*>(there);
}

TEST_P(guest_signals, handlers_from_before_get_the_programs_faults) {
  in_child([this] {
    const volatile char *const gone = make_gone(), *const forbidden = make_forbidden();
    handle_faults();
    expect_faults(gone, forbidden, 1);
    {
      mount fs(options());
      expect_faults(gone, forbidden, 2);
      use(fs);
      expect_faults(gone, forbidden, 3);
      use(fs, 1);
    }
    expect_faults(gone, forbidden, 4);
  });
}

TEST_P(guest_signals, handlers_from_after_get_the_programs_faults) {
  in_child([this] {
    const volatile char *const gone = make_gone(), *const forbidden = make_forbidden();
    mount fs(options());
    use(fs);
    handle_faults();
    expect_faults(gone, forbidden, 1);
    use(fs, 1);
    expect_faults(gone, forbidden, 2);
    fs.unmount();
    expect_faults(gone, forbidden, 3);
  });
}

// Until the next tick of the clock by which the mount looks whether its handler is still there.
void wait_for_ticks(int count) {
  const auto coarse_now = [] {
    timespec t{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_nsec;
  };
  for (; count > 0; --count) {
    for (const long before = coarse_now(); coarse_now() == before;) std::this_thread::yield();
  }
}

std::atomic<int> strays{0};

// A handler from after gets no fault of a file that is truncated under the mount's readers.
TEST_P(guest_signals, handlers_from_after_see_no_truncated_file_of_a_kernels) {
  in_child([this] {
    const std::string large = folder_.write("truncated", std::string(1'000'000, 't'));
    mount_options o = options();
    o.extent_budget_bytes = 0;
    mount fs(o);
    session calls(fs, group_kind::warp);
    const std::int32_t fd = calls.open(path("truncated"));
    for (int i = 0; i < 2; ++i) {
      for (std::int64_t at = 0; at < 1'000'000; at += 4096)
        ASSERT_GE(calls.read(fd, at, 4096).result, 0);
    }
    struct sigaction action{};
    action.sa_handler = [](int) {
      ++strays;
      _exit(77);
    };
    ASSERT_EQ(sigaction(SIGBUS, &action, nullptr), 0);
    wait_for_ticks(2);
    std::filesystem::resize_file(large, 5000);
    for (std::int64_t at = 0; at < 1'000'000; at += 4096) (void)calls.read(fd, at, 4096);
    EXPECT_EQ(strays, 0);
    EXPECT_EQ(calls.close(fd), 0);
  });
}

TEST_P(guest_signals, a_mount_changes_no_disposition_but_that_of_bus_errors) {
  in_child([this] {
    const auto all = [] {
      std::array<struct sigaction, NSIG> actions{};
      for (int number = 1; number < NSIG; ++number)
        (void)sigaction(number, nullptr, &actions[static_cast<std::size_t>(number)]);
      return actions;
    };
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGUSR1, [](int) {});
    const auto before = all();
    sigset_t mask_before, mask_after;
    (void)pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
    {
      mount fs(options());
      use(fs);
    }
    (void)pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
    const auto after = all();
    for (int number = 1; number < NSIG; ++number) {
      EXPECT_EQ(sigismember(&mask_before, number), sigismember(&mask_after, number)) << number;
      if (number == SIGBUS && GetParam().maps_files) continue;
      const auto i = static_cast<std::size_t>(number);
      EXPECT_EQ(before[i].sa_handler, after[i].sa_handler) << number;
      EXPECT_EQ(before[i].sa_flags, after[i].sa_flags) << number;
    }
  });
}

// ---- signals that are sent to the process

std::atomic<int> received{0}, received_elsewhere{0};
pthread_t program_thread;

void note_signal(int) {
  ++received;
  if (pthread_equal(pthread_self(), program_thread) == 0) ++received_elsewhere;
}

// Handlers of the program run in threads of the program: they may use what is the thread's, or
// jump.
TEST_P(guest_signals, handlers_run_in_threads_of_the_program) {
  for (const bool is_before : {true, false}) {
    in_child([this, is_before] {
      program_thread = pthread_self();
      const auto handle = [] {
        for (const int number : {SIGINT, SIGTERM, SIGUSR1})
          ASSERT_NE(signal(number, note_signal), SIG_ERR);
      };
      if (is_before) handle();
      mount fs(options());
      if (!is_before) handle();
      std::atomic<bool> is_done{false};
      std::atomic<int> sent{0};
      // Another process, so that no thread of this one is preferred.
      const pid_t self = getpid(), sender = fork();
      if (sender == 0) {
        for (int i = 0; i < 200; ++i) {
          for (const int number : {SIGINT, SIGTERM, SIGUSR1}) (void)::kill(self, number);
          (void)usleep(1000);
        }
        _exit(0);
      }
      for (unsigned i = 0; i < 4; ++i) use(fs, i);
      int status = 0;
      while (waitpid(sender, &status, 0) < 0 && errno == EINTR) {
      }
      EXPECT_GT(received, 0);
      EXPECT_EQ(received_elsewhere, 0);
    });
  }
}

// A program that takes its signals by sigwait(3) or signalfd(2) blocks them in all of its threads,
// also after the mount.
TEST_P(guest_signals, that_the_program_has_blocked_stay_pending) {
  in_child([this] {
    mount fs(options());
    use(fs);
    sigset_t taken;
    sigemptyset(&taken);
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) sigaddset(&taken, number);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &taken, nullptr), 0);
    for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
      ASSERT_EQ(::kill(getpid(), number), 0);
      use(fs, 1);
      const timespec soon{20, 0};
      EXPECT_EQ(sigtimedwait(&taken, nullptr, &soon), number);
    }
    fs.unmount();
  });
}

// ---- signals of writes

bool is_pending(int number) {
  sigset_t pending;
  (void)sigpending(&pending);
  return sigismember(&pending, number) == 1;
}

// Such an unmount writes in the program's own thread.
TEST_P(guest_signals, an_unmount_without_a_thread_survives_a_limit_of_file_size) {
  in_child([this] {
    mount fs(options());
    {
      session calls(fs, group_kind::warp);
      const std::int32_t fd = calls.open(path("made"), O_RDWR | O_CREAT);
      ASSERT_EQ(calls.write(fd, std::string(100'000, 'x'), 0), 100'000);
    }
    const schedule_hook no_threads([](const char* point) {
      if (std::strcmp(point, "thread.start") == 0)
        throw std::system_error(EAGAIN, std::generic_category(), "pthread_create");
    });
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit low{50'000, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    int failure = 0;
    try {
      fs.unmount();
    } catch (const error& e) {
      failure = e.code().value();
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(failure, EFBIG);
  });
}

TEST(guest_signals_of_writes, are_discarded_unless_they_were_pending_before) {
  in_child([] {
    for (const int number : {SIGXFSZ, SIGPIPE}) {
      {
        const blocked_signals meanwhile;
        (void)raise(number);
        EXPECT_TRUE(is_pending(number));
      }  // it would end the program
      sigset_t one;
      sigemptyset(&one);
      sigaddset(&one, number);
      ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &one, nullptr), 0);
      {
        const blocked_signals meanwhile;
        (void)raise(number);
      }
      EXPECT_FALSE(is_pending(number));
      (void)raise(number);
      {
        const blocked_signals meanwhile;
        (void)raise(number);
      }
      EXPECT_TRUE(is_pending(number)) << "it is the program's";
    }
  });
}

TEST(guest_signals_of_writes, from_another_process_stay_pending) {
  in_child([] {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGPIPE);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &one, nullptr), 0);
    {
      const blocked_signals meanwhile;
      const pid_t self = getpid(), sender = fork();
      if (sender == 0) _exit(::kill(self, SIGPIPE));
      int status = 0;
      ASSERT_EQ(waitpid(sender, &status, 0), sender);
      ASSERT_EQ(status, 0);
    }
    EXPECT_TRUE(is_pending(SIGPIPE));
  });
}

}  // namespace
}  // namespace gpufs::testing

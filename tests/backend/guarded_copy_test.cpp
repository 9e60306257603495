// Copies of memory that may be missing, and what becomes of every other SIGBUS.
#include "backend/guarded_copy.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/mapped_reads.hpp"

namespace gpufs::testing {
namespace {

const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

// Mapped memory whose first pages are there, and the rest missing.
class holed_memory {
 public:
  holed_memory(std::size_t pages, std::size_t pages_there) : bytes_(pages * page_bytes) {
    fd_ = memfd_create("gpufs guarded_copy_test", MFD_CLOEXEC);
    const std::string content(bytes_, 'm');
    const bool written =
        fd_ >= 0 && write(fd_, content.data(), bytes_) == static_cast<ssize_t>(bytes_);
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (!written || data == MAP_FAILED) throw std::runtime_error("holed_memory");
    data_ = static_cast<char*>(data);
    shrink(pages_there);
  }
  ~holed_memory() {
    (void)munmap(data_, bytes_);
    (void)close(fd_);
  }
  holed_memory(const holed_memory&) = delete;
  holed_memory& operator=(const holed_memory&) = delete;
  char* page(std::size_t i) const { return data_ + i * page_bytes; }
  int descriptor() const { return fd_; }
  void shrink(std::size_t pages_there) const {
    if (ftruncate(fd_, static_cast<off_t>(pages_there * page_bytes)) != 0)
      throw std::runtime_error("ftruncate");
  }

 private:
  const std::size_t bytes_;
  int fd_ = -1;
  char* data_;
};

TEST(guarded_copy, copies_what_is_there) {
  ASSERT_TRUE(guard_copies());
  const holed_memory memory(2, 2);
  std::string to(2 * page_bytes, '\0');
  EXPECT_TRUE(copy_guarded(to.data(), memory.page(0), to.size()));
  EXPECT_EQ(to, std::string(2 * page_bytes, 'm'));
  EXPECT_TRUE(copy_guarded(to.data(), memory.page(0), 0));
}

TEST(guarded_copy, says_when_a_part_is_missing_and_goes_on) {
  ASSERT_TRUE(guard_copies());
  const holed_memory memory(4, 1);
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  std::string to(4 * page_bytes, '\0');
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(copy_guarded(to.data(), memory.page(0), 4 * page_bytes));
    EXPECT_FALSE(copy_guarded(to.data(), memory.page(1) - 1, 2));
    EXPECT_FALSE(copy_guarded(to.data(), memory.page(3), 1));
    EXPECT_TRUE(copy_guarded(to.data(), memory.page(0), page_bytes));
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int s = 1; s < SIGRTMIN; ++s)
    EXPECT_EQ(sigismember(&before, s), sigismember(&after, s)) << "signal " << s;
}

TEST(guarded_copy, guards_the_other_side_where_it_is_asked_to) {
  ASSERT_TRUE(guard_copies());
  const holed_memory memory(2, 1);
  const std::string from(2 * page_bytes, 'f');
  EXPECT_TRUE(copy_guarded(memory.page(0), from.data(), page_bytes, guarded::destination));
  EXPECT_EQ(*memory.page(0), 'f');
  EXPECT_FALSE(copy_guarded(memory.page(0), from.data(), from.size(), guarded::destination));
}

TEST(guarded_copy, is_each_threads_own) {
  ASSERT_TRUE(guard_copies());
  const holed_memory memory(4, 2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string to(2 * page_bytes, '\0');
      for (int i = 0; i < 500; ++i) {
        const bool there = (i + t) % 2 == 0;
        if (copy_guarded(to.data(), memory.page(there ? 0 : 1), to.size()) != there) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// ---- every other SIGBUS. In processes of their own, because the handler stays.

class guarded_copy_death : public ::testing::Test {
 protected:
  guarded_copy_death() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void touch(const char* address) { (void)*static_cast<const volatile char*>(address); }
  static void put(int flags, void (*handler)(int), void (*with_info)(int, siginfo_t*, void*)) {
    struct sigaction action{};
    action.sa_flags = flags;
    sigaddset(&action.sa_mask, SIGUSR1);
    if (with_info != nullptr) action.sa_sigaction = with_info;
    else action.sa_handler = handler;
    if (sigaction(SIGBUS, &action, nullptr) != 0) _exit(90);
  }
  static void guard() {
    if (!guard_copies()) _exit(91);
  }
  // A guarded copy that works and one that does not, then on.
  static void use() {
    const holed_memory memory(2, 1);
    char to = 0;
    if (!copy_guarded(&to, memory.page(0), 1) || copy_guarded(&to, memory.page(1), 1)) _exit(92);
  }
};

char handler_stack[1 << 16];

void use_handler_stack() {
  stack_t alternate{};
  alternate.ss_sp = handler_stack;
  alternate.ss_size = sizeof handler_stack;
  if (sigaltstack(&alternate, nullptr) != 0) _exit(93);
}

const char* expected_address = nullptr;
sigjmp_buf after_the_fault;
int calls = 0;

TEST_F(guarded_copy_death, a_fault_ends_the_program_as_without_it) {
  EXPECT_EXIT(
      {
        const holed_memory memory(2, 1);
        (void)signal(SIGBUS, SIG_DFL);
        guard();
        use();
        touch(memory.page(1));
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(guarded_copy_death, a_fault_after_a_copy_from_there_is_none_of_its_own) {
  EXPECT_EXIT(
      {
        const holed_memory memory(2, 2);
        // or the handler's frame would overwrite what the copy left on this one
        use_handler_stack();
        (void)signal(SIGBUS, SIG_DFL);
        guard();
        std::string to(2 * page_bytes, '\0');
        std::atomic<bool> copied{false};
        std::atomic<bool> shrunk{false};
        std::thread other([&] {
          while (!copied) std::this_thread::yield();
          memory.shrink(1);
          shrunk = true;
        });
        if (!copy_guarded(to.data(), memory.page(0), to.size())) _exit(94);
        copied = true;
        // No call in between: what the copy left on the stack stays there.
        while (!shrunk.load(std::memory_order_relaxed)) {
        }
        touch(memory.page(1));
        other.join();
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(guarded_copy_death, a_fault_where_the_copy_goes_is_none_of_its_own) {
  EXPECT_EXIT(
      {
        const holed_memory memory(2, 1);
        (void)signal(SIGBUS, SIG_DFL);
        guard();
        (void)copy_guarded(memory.page(1), memory.page(0), 8);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(guarded_copy_death, a_signal_that_somebody_sends_ends_the_program_as_without_it) {
  EXPECT_EXIT(
      {
        (void)signal(SIGBUS, SIG_DFL);
        guard();
        use();
        (void)raise(SIGBUS);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(guarded_copy_death, ignored_signals_stay_ignored_but_faults_never_were) {
  EXPECT_EXIT(
      {
        (void)signal(SIGBUS, SIG_IGN);
        guard();
        use();
        (void)raise(SIGBUS);
        _exit(5);
      },
      ::testing::ExitedWithCode(5), "");
  EXPECT_EXIT(
      {
        const holed_memory memory(2, 1);
        (void)signal(SIGBUS, SIG_IGN);
        guard();
        touch(memory.page(1));
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

void check_fault(int number, siginfo_t* info, void* context) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  const char here = 0;
  if (number != SIGBUS || info->si_addr != expected_address || info->si_code != BUS_ADRERR)
    _exit(80);
  if (context == nullptr) _exit(81);
  if (sigismember(&mask, SIGUSR1) != 1 || sigismember(&mask, SIGBUS) != 1) _exit(82);
  if (&here < handler_stack || &here >= handler_stack + sizeof handler_stack) _exit(83);
  ++calls;
  siglongjmp(after_the_fault, 1);
}

[[gnu::noinline]] void touch_and_come_back() {
  if (sigsetjmp(after_the_fault, 1) == 0)
    (void)*static_cast<const volatile char*>(expected_address);
}

TEST_F(guarded_copy_death, a_handler_gets_its_faults_with_address_mask_and_stack) {
  EXPECT_EXIT(
      {
        use_handler_stack();
        const holed_memory memory(3, 1);
        expected_address = memory.page(2) + 17;
        put(SA_SIGINFO | SA_ONSTACK, nullptr, check_fault);
        guard();
        use();
        if (calls != 0) _exit(84);
        for (int i = 1; i <= 3; ++i) {
          touch_and_come_back();
          if (calls != i) _exit(85);
          use();
        }
        _exit(6);
      },
      ::testing::ExitedWithCode(6), "");
}

TEST_F(guarded_copy_death, a_handler_of_the_old_kind_gets_its_signals_once_if_it_wants_that) {
  EXPECT_EXIT(
      {
        put(0, [](int number) { calls += number == SIGBUS ? 1 : 100; }, nullptr);
        guard();
        for (int i = 1; i <= 3; ++i) {
          (void)raise(SIGBUS);
          if (calls != i) _exit(86);
        }
        _exit(7);
      },
      ::testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        put(static_cast<int>(SA_RESETHAND), [](int) { ++calls; }, nullptr);
        guard();
        use();
        (void)raise(SIGBUS);
        if (calls != 1) _exit(87);
        use();
        (void)raise(SIGBUS);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

// The clock by which copies look whether the handler is still there.
timespec coarse_now() {
  timespec t{};
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return t;
}
void wait_for_ticks(int count) {
  while (count-- > 0) {
    const timespec before = coarse_now();
    while (coarse_now().tv_nsec == before.tv_nsec) std::this_thread::yield();
  }
}

// A window of a mapping is trusted for seconds, but not the handler.
TEST_F(guarded_copy_death, a_handler_put_in_place_later_sees_no_fault_of_a_read) {
  EXPECT_EXIT(
      {
        const holed_memory file(64, 64);
        const std::unique_ptr<mapped_reads> reads = mapped_reads::make(file.descriptor());
        if (reads == nullptr) _exit(95);
        std::string to(page_bytes, '\0');
        bool is_mapped = false;
        for (std::uint32_t i = 0; i <= mapped_reads::reads_before; ++i)
          is_mapped = reads->read(to.data(), page_bytes, 3 * page_bytes);
        if (!is_mapped) _exit(96);
        put(0, [](int) { _exit(97); }, nullptr);
        wait_for_ticks(2);
        file.shrink(1);
        _exit(reads->read(to.data(), page_bytes, 3 * page_bytes) ? 98 : 9);
      },
      ::testing::ExitedWithCode(9), "");
}

TEST_F(guarded_copy_death, it_notices_that_it_was_replaced) {
  EXPECT_EXIT(
      {
        guard();
        put(0, [](int) {}, nullptr);
        _exit(guard_copies() ? 88 : 8);
      },
      ::testing::ExitedWithCode(8), "");
}

}  // namespace
}  // namespace gpufs::testing

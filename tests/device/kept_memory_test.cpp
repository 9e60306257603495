// Freed GPU memory that is kept, without a GPU.
#include "device/kept_memory.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "support/eventually.hpp"

namespace gpufs::testing {
namespace {

constexpr std::size_t never_kept = std::size_t{200} << 20;

// A GPU of 512 MiB. It frees memory only while no kernel runs.
struct fake_driver {
  static inline std::mutex mutex;
  static inline std::map<void*, std::size_t> allocated;
  static inline std::size_t bytes_left, next;
  static inline std::atomic<bool> kernel_runs;
  static inline std::atomic<int> waiting;

  static void reset() {
    allocated.clear();
    bytes_left = std::size_t{512} << 20;
    next = 4096;
    kernel_runs = false;
    waiting = 0;
  }
  static void* try_allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    if (bytes > bytes_left) return nullptr;
    bytes_left -= bytes;
    void* const p = reinterpret_cast<void*>(next += 4096);
    allocated[p] = bytes;
    return p;
  }
  static void* allocate(std::size_t bytes) {
    void* const p = try_allocate(bytes);
    if (p == nullptr) throw error(ENOMEM, "fake");
    return p;
  }
  static void free(void* p) {
    ++waiting;
    while (kernel_runs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting;
    const std::lock_guard lock(mutex);
    bytes_left += allocated.at(p);
    allocated.erase(p);
  }
  static void synchronize() {}
};

class kept_memory_test : public ::testing::Test {
 protected:
  kept_memory_test() { fake_driver::reset(); }
  kept_memory<fake_driver> memory_;
};

TEST_F(kept_memory_test, memory_that_was_freed_is_given_again) {
  void* const first = memory_.take(1000);
  memory_.give(first);
  EXPECT_EQ(memory_.take(1010), first) << "of one size, when rounded";
  EXPECT_NE(memory_.take(1000), first);
  EXPECT_EQ(fake_driver::allocated.size(), 2u);
}

TEST_F(kept_memory_test, all_that_is_kept_is_freed_before_memory_lacks) {
  constexpr std::size_t size = std::size_t{100} << 20;
  memory_.give(memory_.take(size));
  void* const large = memory_.take(std::size_t{500} << 20);
  EXPECT_EQ(fake_driver::allocated.size(), 1u);
  EXPECT_THROW((void)memory_.take(size), error);
  memory_.give(large);
  EXPECT_TRUE(fake_driver::allocated.empty()) << "too large to be kept";
}

TEST_F(kept_memory_test, clear_frees_what_is_kept) {
  memory_.give(memory_.take(1));
  memory_.give(memory_.take(5000));
  memory_.clear();
  EXPECT_TRUE(fake_driver::allocated.empty());
}

// A kernel may never end.
TEST_F(kept_memory_test, an_allocation_does_not_wait_for_another_threads_free) {
  void* const kept = memory_.take(1000);
  memory_.give(kept);
  void* const large = memory_.take(never_kept);
  fake_driver::kernel_runs = true;
  std::thread frees([&] { memory_.give(large); });
  EXPECT_TRUE(eventually([] { return fake_driver::waiting != 0; }));
  auto taken = std::async(std::launch::async,
                          [&] { return std::pair(memory_.take(1000), memory_.take(5000)); });
  EXPECT_EQ(taken.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  fake_driver::kernel_runs = false;
  frees.join();
  EXPECT_EQ(taken.get().first, kept);
}

TEST_F(kept_memory_test, one_that_finds_no_memory_waits_for_it) {
  void* const large = memory_.take(std::size_t{400} << 20);
  fake_driver::kernel_runs = true;
  std::thread frees([&] { memory_.give(large); });
  EXPECT_TRUE(eventually([] { return fake_driver::waiting != 0; }));
  auto taken = std::async(std::launch::async, [&] { return memory_.take(never_kept); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  fake_driver::kernel_runs = false;
  frees.join();
  EXPECT_NE(taken.get(), nullptr);
}

}  // namespace
}  // namespace gpufs::testing

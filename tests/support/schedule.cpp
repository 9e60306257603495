#include "support/schedule.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "support/split_mix.hpp"

namespace gpufs::testing {
namespace {

// What is switched on. It changes only between tests, so a schedule point costs only one relaxed
// load.
enum class mode : int { off, delays, hook };
std::atomic<mode> current_mode{mode::off};

std::atomic<std::uint64_t> delay_seed{0};
std::atomic<std::uint64_t> delay_epoch{
    0};  // increases with each random_delays, so that threads draw new choices
std::atomic<std::uint64_t> threads_seen{0};

std::atomic<const std::function<void(const char*)>*> hook{nullptr};
std::atomic<int> hook_calls{0};

void switch_on(mode wanted) {
  mode expected = mode::off;
  if (current_mode.compare_exchange_strong(expected, wanted)) return;
  std::fprintf(stderr, "schedule: two of random_delays and schedule_hook live at once\n");
  std::abort();
}

void delay_at_random() {
  thread_local std::uint64_t state = 0;
  thread_local std::uint64_t epoch = 0;
  const std::uint64_t now = delay_epoch.load(std::memory_order_relaxed);
  if (epoch != now) {
    epoch = now;
    state = delay_seed.load(std::memory_order_relaxed) +
            threads_seen.fetch_add(1, std::memory_order_relaxed) * 0x632be59bd9b4e019ull;
  }
  const std::uint64_t r = split_mix(state);
  const std::uint64_t choice = r % 1024;
  if (choice < 512) return;
  if (choice < 960) {
    std::this_thread::yield();
  } else if (choice < 1022) {
    std::this_thread::sleep_for(std::chrono::microseconds((r >> 32) % 50));
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

void schedule_point(const char* name) {
  const mode m = current_mode.load(std::memory_order_relaxed);
  if (m == mode::off) return;
  if (m == mode::delays) {
    delay_at_random();
    return;
  }
  // Counts before it reads the pointer. ~schedule_hook clears the pointer and then reads the count,
  // so it waits for this call.
  hook_calls.fetch_add(1);
  struct under_way {
    ~under_way() { hook_calls.fetch_sub(1); }
  } const counted;
  if (const auto* call = hook.load()) (*call)(name);
}

random_delays::random_delays(std::uint64_t seed) {
  delay_seed = seed;
  threads_seen = 0;
  delay_epoch.fetch_add(1);
  switch_on(mode::delays);
}
random_delays::~random_delays() { current_mode = mode::off; }

schedule_hook::schedule_hook(std::function<void(const char*)> call) : call_(std::move(call)) {
  hook = &call_;
  switch_on(mode::hook);
}
schedule_hook::~schedule_hook() {
  current_mode = mode::off;
  hook = nullptr;
  while (hook_calls.load() != 0) std::this_thread::yield();
}

}  // namespace gpufs::testing

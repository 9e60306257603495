// What the service costs while nobody asks for anything, and how soon it is back.
#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <memory>
#include <thread>

#include "support/eventually.hpp"
#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

double process_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

TEST(idle_service, uses_less_than_a_hundredth_of_a_core) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  service_rig_options options;
  options.workers = 8;
  options.slots = 512;
  options.spin_ns = 200'000;
  service_rig rig(io, options);
  EXPECT_EQ(rig.read(rig.open("/a").handle, 0, 7).bytes, "content");
  std::this_thread::sleep_for(1100ms);  // a second after its last request it is idle
  const double before = process_seconds();
  std::this_thread::sleep_for(2s);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr double share_max = 0.1;
#else
  constexpr double share_max = 0.01;
#endif
  EXPECT_LT((process_seconds() - before) / 2, share_max);
}

TEST(idle_service, answers_a_cpu_soon_after_a_pause) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  service_rig rig(io);
  const std::uint64_t handle = rig.open("/a").handle;
  for (const auto pause : {0ms, 5ms, 200ms, 1200ms}) {
    std::this_thread::sleep_for(pause);
    const std::uint64_t start = platform::now_ns();
    EXPECT_EQ(rig.read(handle, 0, 7).bytes, "content");
    EXPECT_LT(platform::now_ns() - start, 20'000'000'000u)
        << "after a pause of " << pause.count() << " ms";
  }
}

// Half a request is no request: its rest may be under way, or a kernel wrote what it should not.
TEST(idle_service, is_not_kept_awake_by_bells_without_requests) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  service_rig rig(io);
  const channel_view view = rig.memory().view();
  // In slots that nobody takes: an owner that is busy.
  for (const std::uint32_t slot : {0u, 1u})
    rig.memory().record(slot).owner.store_release(static_cast<std::uint32_t>(slot_owner::busy));
  view.bell(0).store_release(77);
  view.request(1).store({request_code::read, 1, 4096, 0}, 5);
  view.bell(1).store_release(6);
  EXPECT_EQ(rig.read(rig.open("/a").handle, 0, 4).bytes, "cont");
  EXPECT_TRUE(eventually([&] { return rig.workers().served_count() >= 2u; }));
  EXPECT_EQ(rig.workers().served_count(), 2u);
  std::this_thread::sleep_for(1100ms);
  const double before = process_seconds();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(process_seconds() - before, 0.1);
}

// A GPU cannot wake the workers: they must find the bell by looking.
TEST(idle_service, finds_a_request_that_nobody_woke_it_for) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  service_rig_options options;
  options.workers = 3;
  service_rig rig(io, options);
  const std::uint64_t handle = rig.open("/a").handle;
  const channel_view view = rig.memory().view();
  for (const auto pause : {1ms, 300ms, 1200ms}) {
    std::this_thread::sleep_for(pause);
    channel_client client = rig.client();
    const auto slot = static_cast<std::uint32_t>(client.acquire());
    // As channel_client::post, without the wake-up.
    const std::uint32_t sequence = rig.memory().record(slot).sequence.load_relaxed() + 1;
    rig.memory().record(slot).sequence.store_relaxed(sequence);
    const std::uint64_t start = platform::now_ns();
    view.bell(slot).store_release(sequence);
    std::this_thread::sleep_for(1ms);  // nothing orders the two on a GPU
    view.request(slot).store({request_code::read, handle, 7, 0}, sequence);
    EXPECT_EQ(client.wait(slot).result, 7);
    EXPECT_LT(platform::now_ns() - start, 20'000'000'000u)
        << "after a pause of " << pause.count() << " ms";
    client.release(slot);
  }
}

}  // namespace
}  // namespace gpufs::testing

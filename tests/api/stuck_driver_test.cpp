// The driver lets no copier in until a kernel ends that waits for a bulk request: the kernel must
// end.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "support/schedule.hpp"

namespace gpufs::testing {
namespace {

// Calls of the driver do not return while it is closed.
class driver_gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = false;
    }
    changed_.notify_all();
  }
  unsigned inside() {
    const std::lock_guard lock(mutex_);
    return inside_;
  }
  ~driver_gate() { open(); }

 private:
  void pass() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.wait(lock, [&] { return !closed_; });
    --inside_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  unsigned inside_ = 0;
  const schedule_hook hook_{[this](const char* name) {
    if (std::string_view(name) == "service.driver") pass();
  }};
};

class stuck_driver_test : public conformance {
 protected:
  stuck_driver_test() {
    options.cache_bytes = cache_pages * page_bytes();
    options.rings = 2;
    options.bulk_bytes = run_pages * page_bytes();
    options.extent_bytes = std::max<std::uint64_t>(65536, 4 * options.bulk_bytes);
    options.request_timeout = std::chrono::seconds(600);  // no test waits so long
  }

  static constexpr std::uint64_t run_pages = 16, cache_pages = 128, file_pages = 96;
};
INSTANTIATE_TEST_SUITE_P(conformance, stuck_driver_test,
                         ::testing::ValuesIn(settings({source::posix}, {4096, 65536})),
                         name_of_setting);

// All runs together may hold a quarter of the frames: those of two runs. If the frames of a run
// that was given up did not come back, there would be no third run, and the driver would not be
// asked.
TEST_P(stuck_driver_test, a_read_ends_and_its_frames_come_back) {
  driver_gate driver;
  constexpr unsigned rounds = cache_pages / 4 / run_pages + 1;
  for (unsigned round = 0; round < rounds; ++round) {
    const std::string name = "f" + std::to_string(round);
    const std::string content = create(name, file_pages * page_bytes() + 123, round);
    const std::int32_t fd = open(name);
    driver.close();
    calls().expect_read(fd, content, 0, content.size());
    ASSERT_GT(driver.inside(), 0u) << "round " << round;
    EXPECT_EQ(counted(counter::load_errors) + counted(counter::rpc_failures) +
                  counted(counter::no_frames),
              0u);
    // What the copier does now is done to frames that nobody reads.
    driver.open();
    wait_until([&] { return driver.inside() == 0; });
    // Also with the gate before the driver: else it refuses the next run.
    wait_until([&] { return fs().stats().requests_served == counted(counter::rpcs); });
    std::this_thread::sleep_for(std::chrono::nanoseconds(bulk_state::pause_ns));
    calls().expect_read(fd, content, 0, content.size());
    EXPECT_EQ(calls().close(fd), 0);
  }
  // Then there are runs again.
  const std::string content = create("last", file_pages * page_bytes());
  const std::int32_t fd = open("last");
  const std::uint64_t before = counted(counter::bulk_loads);
  wait_until([&] {
    EXPECT_EQ(calls().advise(fd, 0, 0, POSIX_FADV_WILLNEED), 0);
    return counted(counter::bulk_loads) != before;
  });
  EXPECT_GT(counted(counter::bulk_loads), before);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().close(fd), 0);
}

// Many groups, of which most find the driver busy: none waits for it longer than the first one did.
TEST_P(stuck_driver_test, all_groups_go_on) {
  constexpr std::uint32_t groups = 8, pages = 2 * groups * run_pages;  // frames for four runs
  options.cache_bytes = pages * page_bytes();
  const std::string content = create("a", (pages - 32) * page_bytes());
  driver_gate driver;
  const std::int32_t fd = open("a");
  driver.close();
  stage many(fs(), GetParam().kind, groups);
  device_call set{action::set};
  set.offset = fd;
  device_call ask{action::advise};
  ask.bytes = 4 * run_pages * page_bytes();
  ask.flags = POSIX_FADV_WILLNEED;
  std::vector<script> scripts;
  for (std::uint32_t g = 0; g < groups; ++g) {
    ask.offset = static_cast<std::int64_t>(g * 4 * run_pages * page_bytes() % content.size());
    scripts.push_back({set, ask, ask});
  }
  (void)many.run(scripts, {}, 0);
  EXPECT_GT(driver.inside(), 0u);
  calls().expect_read(fd, content, 0, content.size());
  driver.open();
  EXPECT_EQ(calls().close(fd), 0);
}

}  // namespace
}  // namespace gpufs::testing

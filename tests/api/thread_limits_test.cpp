// The system gives no thread, or no memory: a mount says so, or goes on, and nothing is left
// behind.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "api/matrix.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/eventually.hpp"
#include "support/failing_allocations.hpp"
#include "support/schedule.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

mount_options options_with(unsigned workers, std::shared_ptr<backend> io) {
  mount_options o = base_options();
  o.workers = workers;
  o.backend = std::move(io);
  o.cache_bytes = 64 * o.page_bytes;
  o.extent_bytes = 65536;
  o.extent_budget_bytes = 16 * o.extent_bytes;
  return o;
}

// ---- threads

// While it lives, the nth thread that the library makes is not to be had, and if asked for all
// after it.
class failing_threads {
 public:
  failing_threads(std::uint64_t nth, bool for_ever)
      : hook_([this, nth, for_ever](const char* point) {
          if (std::strcmp(point, "thread.start") != 0) return;
          const std::uint64_t now = ++count_;
          if (now == nth || (for_ever && now > nth))
            throw std::system_error(EAGAIN, std::generic_category(), "pthread_create");
        }) {}
  bool has_struck(std::uint64_t nth) const { return count_ >= nth; }

 private:
  std::atomic<std::uint64_t> count_{0};
  const schedule_hook hook_;
};

class thread_limits : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(with_workers, thread_limits, ::testing::Values(1u, 5u),
                         ::testing::PrintToStringParamName());

TEST_P(thread_limits, a_mount_without_one_of_its_threads_is_an_error) {
  const auto memory = std::make_shared<memory_backend>();
  std::uint64_t nth = 1;
  for (bool is_mounted = false; !is_mounted; ++nth) {
    const failing_threads fail(nth, nth % 2 == 0);
    try {
      mount fs(options_with(GetParam(), memory));
      is_mounted = true;
      EXPECT_FALSE(fail.has_struck(nth));
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EAGAIN) << e.what();
      EXPECT_NE(std::string(e.what()).find("thread"), std::string::npos) << e.what();
    }
    EXPECT_EQ(memory.use_count(), 1) << "something is left of the mount";
  }
  EXPECT_GT(nth, GetParam() + 2);
}

TEST_P(thread_limits, a_launch_goes_on_with_those_that_there_are) {
  const auto memory = std::make_shared<memory_backend>();
  memory->write("a", "some bytes");
  mount_options o = options_with(GetParam(), memory);
  o.cpu_threads = 4;
  mount fs(o);
  for (std::uint64_t nth = 1; nth <= 5; ++nth) {
    const failing_threads fail(nth, true);
    constexpr std::uint32_t blocks = 8;
    std::atomic<std::uint32_t> ran{0};
    launch(fs, {.blocks = blocks, .threads = 1}, [&ran](const mount_ref&) { ++ran; });
    EXPECT_EQ(ran, blocks);
  }
}

TEST_P(thread_limits, a_sink_without_a_thread_is_an_error) {
  mount fs(options_with(GetParam(), std::make_shared<memory_backend>()));
  const auto accept = [](const char*, std::size_t) { return 0; };
  {
    const failing_threads fail(1, false);
    try {
      (void)fs.open_sink(accept);
      ADD_FAILURE() << "opened a sink that has no thread";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EAGAIN);
    }
  }
  EXPECT_EQ(fs.open_sink(accept), 0) << "the place of the failed one is lost";
}

// ---- memory

using whom = failing_allocation::of;

TEST_P(thread_limits, a_mount_without_memory_is_an_error) {
  const auto memory = std::make_shared<memory_backend>();
  const mount_options o = options_with(GetParam(), memory);
  const long references = memory.use_count();
  std::uint64_t nth = 1;
  for (bool has_struck = true; has_struck; ++nth) {
    const failing_allocation fail(whom::this_thread, nth);
    try {
      mount fs(o);
      has_struck = fail.has_struck();  // where less will do, as for an error's text
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), ENOMEM) << e.what();
    } catch (const std::bad_alloc&) {
    }
    EXPECT_EQ(memory.use_count(), references) << "something is left of the mount";
  }
  EXPECT_GT(nth, 10u);
}

TEST_P(thread_limits, a_launch_without_memory_is_an_error) {
  const auto memory = std::make_shared<memory_backend>();
  mount_options o = options_with(GetParam(), memory);
  o.cpu_threads = 4;
  mount fs(o);
  for (std::uint64_t nth = 1, struck = 1; struck != 0; ++nth) {
    constexpr std::uint32_t blocks = 8;
    std::atomic<std::uint32_t> ran{0};
    const failing_allocation fail(whom::this_thread, nth);
    try {
      launch(fs, {.blocks = blocks, .threads = 1}, [&ran](const mount_ref&) { ++ran; });
      EXPECT_EQ(ran, blocks);
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(fail.has_struck());
    }
    struck = fail.has_struck() ? 1 : 0;
  }
}

// Each kind of request, with a file that has extents. The results, in order.
std::vector<std::int32_t> use(service_rig& rig, std::int32_t sink, bool wait_for_extents) {
  std::vector<std::int32_t> results;
  const auto note = [&](const rig_reply& r) { return results.push_back(std::min(r.result, 0)), r; };
  const std::uint64_t small = note(rig.open("/small", 8192)).handle;
  const std::uint64_t large = note(rig.open("/large")).handle;
  for (const std::uint64_t at : {0, 65536, 131072}) (void)note(rig.read(large, at, 4096));
  (void)note(rig.bulk(large, 65536, 8192, 3));
  if (wait_for_extents) {
    EXPECT_TRUE(eventually([&] { return rig.read(large, 65536, 64).extent_bytes != 0; }))
        << "no direct path any more";
  }
  const rig_reply written = note(rig.open_to_write("/new"));
  (void)note(rig.write(written.node, 7, "written"));
  (void)note(rig.call({request_code::sync, written.handle, 0, 0}));
  (void)note(rig.call({request_code::truncate, written.handle, 0, 5}));
  (void)note(rig.send(sink, "sent"));
  for (const std::uint64_t handle : {written.handle, large, small}) (void)note(rig.close(handle));
  const std::string_view both("/new\0/newer", 11);
  (void)note(rig.call({request_code::rename, 0, static_cast<std::uint32_t>(both.size()), 0}, both));
  (void)note(rig.call({request_code::unlink, 0, 6, 0}, "/newer"));
  return results;
}

TEST_P(thread_limits, requests_without_memory_are_errors_and_the_service_goes_on) {
  const std::set<std::int32_t> allowed = {0, -ENOMEM, -EIO, -EBADF, -ENOENT, -EAGAIN};
  std::uint64_t nth = 1;
  for (bool has_struck = true; has_struck; ++nth) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "allocation " + std::to_string(nth));
    const auto memory = std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
    memory->write("/small", "a few bytes");
    memory->write("/large", self_checking(1, 0, 0, 200'000));
    service_rig_options options;
    options.workers = GetParam();
    options.openers = GetParam() >= 4;
    options.extent_budget_bytes = 1 << 20;
    options.extents_ahead = 1;
    std::optional<failing_allocation> fail(std::in_place, whom::other_threads, nth);
    service_rig rig(memory, options);
    const std::int32_t sink = rig.sinks().open([](const char*, std::size_t) { return 0; });
    rig.record().start(1000);
    for (const std::int32_t result : use(rig, sink, false))
      EXPECT_TRUE(allowed.contains(result)) << result;
    // The registrar may still be at it.
    EXPECT_TRUE(eventually([&] {
      const extent_registrar::counts now = rig.extents().count();
      return fail->has_struck() || now.registered + now.refused >= 3;
    }));
    has_struck = fail->has_struck();
    fail.reset();
    (void)rig.call({request_code::unlink, 0, 4, 0}, "/new");
    (void)rig.call({request_code::unlink, 0, 6, 0}, "/newer");
    for (const std::int32_t result : use(rig, sink, true)) EXPECT_EQ(result, 0);
    EXPECT_EQ(rig.files().open_count(), 0u);
    (void)rig.record().stop();
  }
  EXPECT_GT(nth, 20u);
}

TEST_P(thread_limits, a_sink_may_throw_anything) {
  service_rig rig(std::make_shared<memory_backend>());
  const std::int32_t sink = rig.sinks().open([](const char*, std::size_t) -> int { throw 5; });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rig.send(sink, "x").result, -EIO);
}

}  // namespace
}  // namespace gpufs::testing

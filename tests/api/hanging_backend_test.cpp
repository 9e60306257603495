// A call of the backend hangs, whichever it is: every call of the device ends in time, and so does
// unmounting.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "api/matrix.hpp"
#include "gpufs/error.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/hanging_backend.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

// Far above all time-outs that the tests set, which are below a second: a machine may be slow.
constexpr std::uint64_t limit_ns = 60'000'000'000;

std::size_t threads_now() {
  std::size_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    count += thread.exists() ? 1u : 0u;
  return count;
}

class hanging_backend_test : public ::testing::TestWithParam<unsigned> {
 protected:
  hanging_backend_test() {
    (void)mount(options());  // starts what a sanitizer has of its own
    threads_before_ = threads_now();
    memory_->write("a", content_);
  }

  mount_options options(std::shared_ptr<backend> io = nullptr) const {
    mount_options o = base_options();
    o.workers = GetParam();
    o.backend = std::move(io);
    o.cache_bytes = 64 * o.page_bytes;
    o.extent_bytes = extent_bytes;
    o.extent_budget_bytes = 16 * extent_bytes;
    o.request_timeout = std::chrono::milliseconds(50);
    o.reclaim_timeout = std::chrono::milliseconds(50);
    o.unmount_timeout = std::chrono::milliseconds(200);
    return o;
  }

  template <class Call>
  static auto in_time(const char* what, const Call& call) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, what);
    const std::uint64_t start = platform::now_ns();
    const auto result = call();
    EXPECT_LT(platform::now_ns() - start, limit_ns);
    return result;
  }

  // All kinds of calls, of a program that does not care for errors.
  void use(mount& fs, const hanging_backend::gate& gate) {
    session s(fs, group_kind::thread);
    const std::int32_t fd = in_time("open", [&] { return s.open("a"); });
    bool has_read = true;  // on a busy machine a call may be given up without a hang
    for (const std::uint64_t at : {std::uint64_t{0}, extent_bytes, extent_bytes + 1})
      has_read &= in_time("read", [&] {
                    return s.read(fd, static_cast<std::int64_t>(at), 1000).result;
                  }) == 1000;
    EXPECT_TRUE(!has_read || eventually([&] {
      const statistics now = fs.stats();
      return now.extents_registered + now.extents_refused >= 2 || gate.has_hung();
    }));
    in_time("close", [&] { return s.close(fd); });
    const std::int32_t written = in_time("open", [&] { return s.open("b", O_RDWR | O_CREAT); });
    in_time("write", [&] { return s.write(written, content_.substr(0, 10000), 7); });
    in_time("sync", [&] { return s.sync(written); });
    in_time("truncate", [&] { return s.truncate(written, 5000); });
    in_time("write", [&] { return s.write(written, "more", 2); });
    in_time("close", [&] { return s.close(written); });
    in_time("rename", [&] { return s.rename("b", "c"); });
    in_time("unlink", [&] { return s.unlink("c"); });
    in_time("open", [&] { return s.open("a"); });  // and is open when the mount ends
  }

  // Whether the program made so many calls of this name.
  bool run(const std::string& call, std::uint64_t nth, bool for_ever = false) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, call + " " + std::to_string(nth));
    auto io = std::make_shared<hanging_backend>(memory_, call, nth, for_ever);
    const std::shared_ptr<hanging_backend::gate> gate = io->calls();
    auto fs = std::make_unique<mount>(options(std::move(io)));
    use(*fs, *gate);
    in_time("unmount", [&] { return fs.reset(), 0; });
    const bool has_hung = gate->has_hung();
    gate->release();
    EXPECT_TRUE(
        eventually([&] { return !gate->is_occupied() && threads_now() <= threads_before_; }, 60s))
        << "a thread that was left behind does not end";
    return has_hung;
  }

  template <class Attempt>
  static bool happens(const Attempt& attempt) {
    for (int i = 0; i < 20 && !HasFailure(); ++i) {
      if (attempt()) return true;
    }
    return false;
  }

  const std::string content_ = self_checking(1, 0, 0, 3 * extent_bytes);
  // One for all mounts: those that are left behind keep its files open.
  const std::shared_ptr<memory_backend> memory_ =
      std::make_shared<memory_backend>(memory_backend_options{.mappings = true});
  std::size_t threads_before_ = 0;
};
INSTANTIATE_TEST_SUITE_P(with_workers, hanging_backend_test, ::testing::Values(1u, 4u),
                         ::testing::PrintToStringParamName());

TEST_P(hanging_backend_test, any_call_may_hang_and_everything_ends_in_time) {
  constexpr std::uint64_t most = 100;
  for (const char* call :
       {"open", "open_to_change", "identify", "prepare", "read", "map", "cached", "fault_in",
        "munmap", "write", "truncate", "sync", "report_close", "unlink", "rename", "close"}) {
    // Not at the first attempt if a request before it timed out.
    EXPECT_TRUE(happens([&] { return run(call, 1); })) << "the program makes no call of " << call;
    std::uint64_t nth = 2;
    while (nth < most && !HasFailure() && run(call, nth)) ++nth;
    EXPECT_LT(nth, most);
  }
}

// A file server that dies: each thread that asks it for something hangs, one after the other.
TEST_P(hanging_backend_test, from_any_call_on_all_may_hang_and_everything_ends_in_time) {
  constexpr std::uint64_t most = 60;  // calls that the program makes, and a few more
  for (work_budget budget(3); budget.next();) {
    SCOPED_TRACE(budget.replay());
    // Far apart, and each of them once in so many seeds.
    const bool has_hung = run("", (budget.seed() * 23) % most + 1, true);
    budget.covers("hangs", has_hung ? 1 : 0);
  }
}

// They come at the beginning of a thread, and all the time.
TEST_P(hanging_backend_test, so_may_the_calls_that_no_request_makes) {
  for (const std::uint64_t nth : {1, 10})
    EXPECT_TRUE(happens([&] { return run("close_handed", nth); }));
  EXPECT_EQ(run("enter_opener", 1), GetParam() >= 4) << "openers are there from four workers on";
}

// The write hangs that the last gclose waits for; the backend recovers before the mount ends.
TEST_P(hanging_backend_test, what_the_last_gclose_discarded_is_reported_at_the_end) {
  auto io = std::make_shared<hanging_backend>(memory_, "write", 1);
  const std::shared_ptr<hanging_backend::gate> gate = io->calls();
  mount_options o = options(std::move(io));
  o.workers = std::max(o.workers, 2u);  // the others answer
  mount fs(o);
  {
    session s(fs, group_kind::thread), patient(fs, group_kind::thread, std::chrono::seconds(60));
    const std::int32_t fd = patient.open("lost", O_RDWR | O_CREAT);
    ASSERT_EQ(patient.write(fd, "some", 0), 4);
    ASSERT_EQ(patient.write(fd, "lost", 1 << 17), 4);
    EXPECT_EQ(in_time("close", [&] { return s.close(fd); }), -EIO);
  }
  gate->release();
  try {
    fs.unmount();
    ADD_FAILURE() << "bytes are lost";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EIO);
    EXPECT_EQ(e.path(), "lost");
  }
}

TEST_P(hanging_backend_test, so_may_a_sink) {
  std::atomic<bool> go_on{false};
  const auto used = std::make_shared<int>(0);  // by the function, until it returns
  auto fs = std::make_unique<mount>(options(memory_));
  const std::int32_t sink = fs->open_sink([&go_on, used](const char*, std::size_t) {
    while (!go_on) std::this_thread::sleep_for(1ms);
    return *used;
  });
  {
    session s(*fs, group_kind::thread);
    EXPECT_EQ(in_time("send", [&] { return s.send(sink, "x"); }), -EIO);
    session patient(*fs, group_kind::thread, std::chrono::seconds(60));
    EXPECT_GE(in_time("open", [&] { return patient.open("a"); }), 0) << "the workers are there";
  }
  in_time("unmount", [&] { return fs.reset(), 0; });
  go_on = true;
  EXPECT_TRUE(
      eventually([&] { return used.use_count() == 1 && threads_now() <= threads_before_; }, 60s));
}

// Its function returns after the mount has ended, and then its thread answers the kernel.
TEST_P(hanging_backend_test, so_may_a_sink_that_could_not_be_closed) {
  std::atomic<bool> go_on{false}, taking{false};
  const auto used = std::make_shared<int>(0);  // by the function, until it returns
  auto fs = std::make_unique<mount>(options(memory_));
  fs->start_timeline();
  const std::int32_t sink = fs->open_sink([&go_on, &taking, used](const char*, std::size_t) {
    taking = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
    return *used;
  });
  {
    session s(*fs, group_kind::thread);
    EXPECT_EQ(in_time("send", [&] { return s.send(sink, "x"); }), -EIO);
  }
  EXPECT_TRUE(eventually([&] { return taking.load(); }));
  EXPECT_FALSE(in_time("close_sink", [&] { return fs->close_sink(sink); }));
  try {
    fs->unmount();
    ADD_FAILURE() << "the sink has not returned";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), ETIMEDOUT);
  }
  in_time("destructor", [&] { return fs.reset(), 0; });
  go_on = true;
  EXPECT_TRUE(
      eventually([&] { return used.use_count() == 1 && threads_now() <= threads_before_; }, 60s));
}

// A sink that could not be closed in time and has returned since is no obstacle.
TEST_P(hanging_backend_test, a_sink_that_returns_after_its_close_gave_up_lets_the_mount_end) {
  std::atomic<bool> go_on{false}, taking{false};
  mount_options o = options(memory_);
  o.unmount_timeout = std::chrono::nanoseconds(limit_ns);
  mount fs(o);
  const std::int32_t sink = fs.open_sink([&go_on, &taking](const char*, std::size_t) {
    taking = true;
    while (!go_on) std::this_thread::sleep_for(1ms);
    return 0;
  });
  {
    session s(fs, group_kind::thread);
    EXPECT_EQ(in_time("send", [&] { return s.send(sink, "x"); }), -EIO);
  }
  EXPECT_TRUE(eventually([&] { return taking.load(); }));
  EXPECT_FALSE(in_time("close_sink", [&] { return fs.close_sink(sink); }));
  go_on = true;
  EXPECT_NO_THROW(fs.unmount());
}

// Descriptors that others left to the service's threads: after their end, closing one may hang as
// well.
TEST_P(hanging_backend_test, so_may_a_close_of_what_the_service_left_open) {
  struct gate {
    const std::thread::id unmounting = std::this_thread::get_id();
    std::atomic<bool> is_ending{false}, go_on{false}, by_unmounting{false};
    std::atomic<int> calls{0};
  };
  class leaving_backend : public backend {
   public:
    leaving_backend(std::shared_ptr<backend> wrapped, std::shared_ptr<gate> calls)
        : wrapped_(std::move(wrapped)), gate_(std::move(calls)) {}
    int open(const std::string& path, bool no_follow,
             std::unique_ptr<backend_file>& file) override {
      return wrapped_->open(path, no_follow, file);
    }
    int open_to_change(const std::string& path, const open_how& how,
                       std::unique_ptr<backend_file>& file) override {
      return wrapped_->open_to_change(path, how, file);
    }
    void close_handed() override {
      if (!gate_->is_ending) return;
      if (std::this_thread::get_id() == gate_->unmounting) gate_->by_unmounting = true;
      ++gate_->calls;
      (void)eventually([&] { return gate_->go_on.load(); });
      --gate_->calls;
    }

   private:
    const std::shared_ptr<backend> wrapped_;
    const std::shared_ptr<gate> gate_;
  };
  const auto all = std::make_shared<gate>();
  const auto io = std::make_shared<fault_backend>(memory_);
  fault ends;  // the file that is open for writing is synced when the service has ended
  ends.on = operation::sync;
  ends.before = [all] { all->is_ending = true; };
  io->add(ends);
  mount_options o = options(std::make_shared<leaving_backend>(io, all));
  o.request_timeout = std::chrono::seconds(5);  // or a busy machine's sync hangs, too,
  o.unmount_timeout = std::chrono::seconds(3);  // or the end of a thread
  auto fs = std::make_unique<mount>(o);
  {
    session s(*fs, group_kind::thread);
    EXPECT_GE(s.open("b", O_RDWR | O_CREAT), 0);
  }
  in_time("unmount", [&] { return fs.reset(), 0; });
  EXPECT_FALSE(all->by_unmounting);
  EXPECT_TRUE(eventually([&] { return all->calls == 1; })) << "nobody closes what was left";
  all->go_on = true;
  EXPECT_TRUE(eventually([&] { return all->calls == 0 && threads_now() <= threads_before_; }, 60s));
}

}  // namespace
}  // namespace gpufs::testing

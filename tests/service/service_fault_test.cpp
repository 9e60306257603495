// What goes wrong behind the service, and what the caller gets: interrupted and short reads,
// errors, exceptions, dead workers.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

using namespace std::chrono_literals;

class service_faults : public ::testing::Test {
 protected:
  service_faults() {
    content_.resize(100'000);
    for (std::size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 31 >> 3);
    memory_->write("/a", content_);
    memory_->write("/small", "few bytes");
  }
  void expect_read(service_rig& rig, std::uint64_t handle, std::uint64_t offset,
                   std::uint32_t length) {
    const rig_reply r = rig.read(handle, offset, length);
    const std::string expected = offset < content_.size() ? content_.substr(offset, length) : "";
    EXPECT_EQ(r.result, static_cast<std::int32_t>(expected.size()));
    EXPECT_TRUE(r.bytes == expected) << length << " bytes at " << offset;
  }

  std::string content_;
  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_, 42);
};

TEST_F(service_faults, interrupted_and_short_reads_are_continued) {
  io_->add({.on = operation::read, .every = 3, .error_number = EINTR});
  io_->add({.on = operation::read, .probability = 0.8, .bytes_max = 700});
  service_rig rig(io_);
  const std::uint64_t handle = rig.open("/a").handle;
  for (std::uint64_t offset = 0; offset < 101'000; offset += 7001)
    expect_read(rig, handle, offset, 8192);
  expect_read(rig, handle, 99'990, 8192);
  EXPECT_GT(io_->strikes(), 100u);
}

TEST_F(service_faults, a_small_file_comes_whole_also_in_short_reads) {
  io_->add({.on = operation::read, .bytes_max = 2});
  service_rig rig(io_);
  const rig_reply r = rig.open("/small", 8192);
  EXPECT_EQ(r.result, 9);
  EXPECT_EQ(r.bytes, "few bytes");
}

TEST_F(service_faults, an_error_reaches_the_caller_and_the_next_read_may_succeed) {
  service_rig rig(io_);
  const std::uint64_t handle = rig.open("/a").handle;
  for (const int error_number : {EIO, EAGAIN, ENXIO, ENOMEM}) {
    io_->add({.on = operation::read, .times_max = 1, .error_number = error_number});
    EXPECT_EQ(rig.read(handle, 0, 4096).result, -error_number);
    expect_read(rig, handle, 0, 4096);
    io_->clear();
  }
  // Also one that comes after the first part was read.
  io_->add({.on = operation::read, .nth = 2, .error_number = EIO});
  io_->add({.on = operation::read, .bytes_max = 1000});
  EXPECT_EQ(rig.read(handle, 0, 4096).result, -EIO);
  expect_read(rig, handle, 0, 4096);
}

TEST_F(service_faults, errors_of_an_open_reach_the_caller) {
  service_rig rig(io_);
  for (const int error_number : {EACCES, EIO, ENOMEM, EPERM, ETXTBSY}) {
    io_->add({.on = operation::open, .error_number = error_number});
    EXPECT_EQ(rig.open("/a").result, -error_number);
    io_->clear();
    io_->add({.on = operation::identify, .error_number = error_number});
    EXPECT_EQ(rig.open("/a").result, -error_number);
    io_->clear();
  }
  EXPECT_EQ(rig.files().open_count(), 0u);
  EXPECT_EQ(rig.open("/a").result, 0);
}

TEST_F(service_faults, an_open_that_was_interrupted_is_made_again) {
  service_rig rig(io_);
  for (const request_code code : {request_code::open, request_code::open_write}) {
    io_->add({.on = operation::open, .times_max = 3, .error_number = EINTR});
    EXPECT_EQ(rig.call({code, open_reads | open_writes, 2, 0}, "/a").result, 0);
    io_->clear();
  }
  EXPECT_EQ(io_->strikes(), 6u);
}

// A file system may say for ever that a signal came.
TEST_F(service_faults, calls_that_are_always_interrupted_fail) {
  service_rig rig(io_);
  const rig_reply file = rig.call({request_code::open_write, open_reads | open_writes, 2, 0}, "/a");
  for (const operation on :
       {operation::open, operation::read, operation::write, operation::truncate, operation::sync})
    io_->add({.on = on, .error_number = EINTR});
  EXPECT_EQ(rig.call({request_code::open, 0, 2, 0}, "/a").result, -EIO);
  EXPECT_EQ(rig.call({request_code::open_write, open_reads | open_writes, 2, 0}, "/a").result,
            -EIO);
  EXPECT_EQ(rig.call({request_code::read, file.handle, 10, 0}).result, -EIO);
  EXPECT_EQ(rig.call({request_code::write, file.node, 5, 0}, "bytes").result, -EIO);
  EXPECT_EQ(rig.call({request_code::truncate, file.handle, 0, 4}).result, -EIO);
  EXPECT_EQ(rig.call({request_code::sync, file.handle, 0, 0}).result, -EIO);
}

TEST_F(service_faults, an_error_of_the_bytes_that_come_along_does_not_spoil_the_open) {
  service_rig rig(io_);
  io_->add({.on = operation::read, .times_max = 1, .error_number = EIO});
  const rig_reply r = rig.open("/small", 8192);
  EXPECT_EQ(r.result, 0);
  EXPECT_EQ(r.size, 9u);
  EXPECT_EQ(rig.read(r.handle, 0, 100).bytes, "few bytes");
  EXPECT_EQ(rig.open("/small", 8192).bytes, "few bytes") << "they were not delivered yet";
  EXPECT_EQ(rig.open("/small", 8192).result, 0) << "they come once per version";
}

TEST_F(service_faults, an_exception_answers_and_the_worker_goes_on) {
  service_rig_options options;
  options.workers = 1;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle;
  for (const operation on : {operation::read, operation::open, operation::identify}) {
    for (int i = 0; i < 20; ++i) {
      io_->add({.on = on, .exception = true});
      EXPECT_EQ((on == operation::read ? rig.read(handle, 0, 10) : rig.open("/a")).result, -EIO);
      io_->clear();
      expect_read(rig, handle, 10, 10);
    }
  }
  io_->add({.on = operation::read, .exception = true});
  EXPECT_EQ(rig.open("/small", 8192).result, -EIO);
  EXPECT_EQ(rig.files().open_count(), 1u) << "an open that failed left a file open";
}

TEST_F(service_faults, a_dying_worker_answers_and_the_others_go_on) {
  service_rig_options options;
  options.workers = 4;
  options.timeouts = {100'000'000'000};
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle;
  for (int death = 1; death < 4; ++death) {
    io_->add({.on = operation::read, .times_max = 1, .worker_death = true});
    const std::uint64_t start = platform::now_ns();
    const rig_reply r = rig.read(handle, 0, 10);
    EXPECT_EQ(r.result, -EIO);
    EXPECT_FALSE(r.abandoned) << "it got no answer";
    EXPECT_LT(platform::now_ns() - start, 20'000'000'000u);
    io_->clear();
    for (std::uint64_t i = 0; i < 50; ++i) expect_read(rig, handle, i * 1000, 1000);
  }
}

TEST_F(service_faults, slots_of_a_dead_worker_are_served_by_the_others_under_load) {
  service_rig_options options;
  options.workers = 3;
  options.slots = 12;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::read, .nth = 50, .worker_death = true});
  io_->add({.on = operation::read, .nth = 200, .worker_death = true});
  std::atomic<int> deaths{0}, wrong{0};
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 12; ++c) {
    clients.emplace_back([&, c] {
      for (std::uint64_t i = 0; i < 100; ++i) {
        const rig_reply r = rig.read(handle, (c * 100 + i) * 50, 50);
        if (r.result == -EIO && !r.abandoned) ++deaths;
        else if (r.bytes != content_.substr((c * 100 + i) * 50, 50)) ++wrong;
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(deaths, 2);
  EXPECT_EQ(wrong, 0);
}

TEST_F(service_faults, when_all_workers_are_dead_every_caller_ends_soon) {
  service_rig_options options;
  options.workers = 2;
  options.slots = 4;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle;
  io_->add({.on = operation::read, .every = 20, .worker_death = true});
  const random_delays delays(6);
  std::atomic<int> wrong{0};
  std::atomic<std::uint64_t> slowest{0};
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < 8; ++c) {
    clients.emplace_back([&] {
      int failed = 0;
      while (failed < 5) {
        const std::uint64_t start = platform::now_ns();
        const rig_reply r = rig.read(handle, 4000, 100);
        const std::uint64_t took = platform::now_ns() - start;
        for (std::uint64_t seen = slowest;
             took > seen && !slowest.compare_exchange_weak(seen, took);) {
        }
        if (r.result == -EIO) ++failed;
        else if (r.bytes != content_.substr(4000, 100)) ++wrong;
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(wrong, 0);
  // A request may take 60 s.
  EXPECT_LT(slowest, 3'000'000'000u);
  EXPECT_EQ(rig.memory().view().reply(0).service.load_relaxed(),
            static_cast<std::uint32_t>(service_phase::dead));
}

TEST_F(service_faults, a_worker_that_hangs_in_one_read_does_not_keep_the_others_from_answering) {
  service_rig_options options;
  options.workers = 2;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle, other = rig.open("/small").handle;
  std::atomic<bool> go_on{false}, hangs{false};
  io_->add({.on = operation::read, .path = "/a", .before = [&] {
              hangs = true;
              while (!go_on) std::this_thread::sleep_for(1ms);
            }});
  std::thread stuck([&] { EXPECT_EQ(rig.read(handle, 0, 10).result, 10); });
  EXPECT_TRUE(eventually([&] { return hangs.load(); }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rig.read(other, 0, 9).bytes, "few bytes");
  go_on = true;
  stuck.join();
}

// What a worker has seen in one look at the bells, while it is at the first of them.
class service_rounds : public service_faults {
 protected:
  // So many workers, each in a read of a file "/gate" until open_gate().
  void keep_busy(service_rig& rig, unsigned workers) {
    memory_->write("/gate", "gate");
    gate_ = rig.open("/gate").handle;
    io_->add({.on = operation::read, .path = "/gate", .before = [this] {
                ++at_gate_;
                while (!open_) std::this_thread::sleep_for(1ms);
              }});
    for (unsigned w = 0; w < workers; ++w)
      clients_.emplace_back([this, &rig] { (void)rig.read(gate_, 0, 4); });
    EXPECT_TRUE(eventually([&] { return at_gate_ == static_cast<int>(workers); }));
  }
  // Posts reads of one byte each, which all wait.
  void post(service_rig& rig, std::uint64_t handle, unsigned count) {
    results_ = std::vector<std::atomic<std::int32_t>>(count);
    for (unsigned i = 0; i < count; ++i)
      clients_.emplace_back([this, &rig, handle, i] {
        const rig_reply r = rig.read(handle, i, 1);
        EXPECT_EQ(r.abandoned, service_ends_);
        results_[i] = r.result;
      });
    EXPECT_TRUE(eventually([&] {
      unsigned posted = 0;
      const channel_view view = rig.memory().view();
      for (std::uint32_t slot = 0; slot < view.layout.slot_count; ++slot) {
        posted +=
            view.bell(slot).load_acquire() != reply_sequence(view.reply(slot).word.load_acquire())
                ? 1u
                : 0u;
      }
      return posted == count + static_cast<unsigned>(at_gate_);
    }));
  }
  unsigned with_result(std::int32_t result) const {
    unsigned n = 0;
    for (const auto& r : results_) n += r == result ? 1u : 0u;
    return n;
  }
  void end() {
    for (std::thread& t : clients_) t.join();
  }

  static service_rig_options with_workers(unsigned workers) {
    service_rig_options options;
    options.workers = workers;
    options.slots = 16;
    options.timeouts = {100'000'000'000};  // who waits for them is not soon back
    return options;
  }

  std::uint64_t gate_ = 0;
  std::atomic<int> at_gate_{0};
  std::atomic<bool> open_{false};
  bool service_ends_ = false;  // before it answers
  std::vector<std::atomic<std::int32_t>> results_;
  std::vector<std::thread> clients_;
};

TEST_F(service_rounds, each_request_is_answered_before_the_next_is_begun) {
  service_rig rig(io_, with_workers(1));
  const std::uint64_t handle = rig.open("/a").handle;
  keep_busy(rig, 1);
  std::atomic<bool> go_on{false}, hangs{false};
  io_->add({.on = operation::read, .path = "/a", .nth = 4, .before = [&] {
              hangs = true;
              while (!go_on) std::this_thread::sleep_for(1ms);
            }});
  post(rig, handle, 8);
  open_ = true;
  EXPECT_TRUE(eventually([&] { return hangs.load(); }));
  EXPECT_TRUE(eventually([&] { return with_result(1) == 3; })) << with_result(1);
  go_on = true;
  end();
  EXPECT_EQ(with_result(1), 8u);
}

TEST_F(service_rounds,
       a_worker_that_hangs_in_one_request_does_not_hold_the_others_that_it_has_seen) {
  service_rig rig(io_, with_workers(2));
  const std::uint64_t handle = rig.open("/a").handle;
  keep_busy(rig, 2);
  std::atomic<bool> go_on{false};
  io_->add({.on = operation::read, .path = "/a", .nth = 1, .before = [&] {
              while (!go_on) std::this_thread::sleep_for(1ms);
            }});
  post(rig, handle, 12);
  open_ = true;
  EXPECT_TRUE(eventually([&] { return with_result(1) == 11; })) << with_result(1);
  go_on = true;
  end();
  EXPECT_EQ(with_result(1), 12u);
}

TEST_F(service_rounds,
       a_worker_that_dies_fails_one_request_and_the_others_that_it_has_seen_are_served) {
  service_rig rig(io_, with_workers(2));
  const std::uint64_t handle = rig.open("/a").handle;
  keep_busy(rig, 2);
  io_->add({.on = operation::read, .path = "/a", .nth = 1, .worker_death = true});
  post(rig, handle, 12);
  const std::uint64_t start = platform::now_ns();
  open_ = true;
  end();
  EXPECT_LT(platform::now_ns() - start, 20'000'000'000u) << "a caller waited for its timeout";
  EXPECT_EQ(with_result(-EIO), 1u);
  EXPECT_EQ(with_result(1), 11u);
}

// By then the unmount writes what is dirty, and reports what it cannot write.
TEST_F(service_rounds, a_worker_that_hung_until_after_the_end_serves_nothing_more) {
  service_rig rig(io_, with_workers(1));
  const std::uint64_t handle = rig.open("/a").handle;
  std::uint64_t served = 0;
  service_ends_ = true;
  io_->add({.on = operation::read, .times_max = 1, .before = [this] {
              ++at_gate_;
              while (!open_) std::this_thread::sleep_for(1ms);
            }});
  std::atomic<bool> looks{false}, are_posted{false};
  {
    // It finds several requests at once, and hangs in the first of them.
    const schedule_hook hook([&](const char* name) {
      if (std::string_view(name) != "service.claim") return;
      looks = true;
      while (!are_posted) std::this_thread::sleep_for(1ms);
    });
    EXPECT_TRUE(eventually([&] { return looks.load(); }));
    served = rig.workers().served_count();
    post(rig, handle, 12);
    are_posted = true;
    EXPECT_TRUE(eventually([&] { return at_gate_ == 1; }));
  }
  std::thread stopper([&] { EXPECT_TRUE(rig.workers().stop(deadline::after(60'000'000'000))); });
  EXPECT_TRUE(eventually([&] {
    return rig.memory().view().reply(0).service.load_relaxed() ==
           static_cast<std::uint32_t>(service_phase::dead);
  }));
  end();
  open_ = true;
  stopper.join();
  EXPECT_EQ(with_result(-EIO), 12u);
  EXPECT_EQ(rig.workers().served_count(), served + 1) << "the one at the gate";
}

TEST_F(service_faults, the_end_of_the_service_ends_those_who_wait) {
  service_rig_options options;
  options.workers = 1;
  service_rig rig(io_, options);
  const std::uint64_t handle = rig.open("/a").handle;
  std::atomic<bool> go_on{false}, hangs{false};
  io_->add({.on = operation::read, .before = [&] {
              hangs = true;
              while (!go_on) std::this_thread::sleep_for(1ms);
            }});
  std::vector<std::thread> clients;
  std::atomic<int> answered{0}, refused{0};
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&] {
      const rig_reply r = rig.read(handle, 0, 10);
      EXPECT_TRUE(r.result == 10 || r.result == -EIO) << r.result;
      ++(r.result == 10 ? answered : refused);
    });
  }
  EXPECT_TRUE(eventually([&] { return hangs.load(); }));
  std::thread stopper([&] { EXPECT_TRUE(rig.workers().stop(30'000'000'000)); });
  std::this_thread::sleep_for(20ms);
  go_on = true;
  stopper.join();
  for (std::thread& t : clients) t.join();
  EXPECT_GE(answered, 1);
  EXPECT_EQ(answered + refused, 6);
  EXPECT_EQ(rig.read(handle, 0, 10).result, -EIO);
}

// What the report has said is not true of bytes that come after it. If the file is closed by then,
// the write itself tells.
class reported_close : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(file, reported_close, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "closed" : "open"; });

TEST_P(reported_close, a_write_that_ends_after_the_report_is_followed_by_a_report_of_its_own) {
  const auto memory = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(memory);
  memory->write("a", "content");
  std::atomic<bool> writes{false}, go_on{false};
  service_rig rig(io);
  const rig_reply file = rig.open_to_write("a");
  io->add({.on = operation::write, .before = [&] {
             writes = true;
             while (!go_on) std::this_thread::yield();
           }});
  std::int32_t written = 0;
  std::thread writer([&] { written = rig.write(file.node, 0, "late").result; });
  EXPECT_TRUE(eventually([&] { return writes.load(); }));
  EXPECT_EQ(rig.call({request_code::report_close, file.handle, 0, 0}).result, 0);
  EXPECT_EQ(io->calls(operation::close), 1u);
  const request close{request_code::close_written, file.handle, 0, 0};
  if (GetParam()) {
    EXPECT_EQ(rig.call(close).result, 0);
  }
  io->add({.on = operation::close, .error_number = EDQUOT});
  go_on = true;
  writer.join();
  EXPECT_EQ(written, GetParam() ? -EDQUOT : 4);
  EXPECT_EQ(rig.call(close).result, GetParam() ? -EBADF : -EDQUOT);
  EXPECT_EQ(io->calls(operation::close), 2u);
  // The thread that wrote may remember the file until its next request.
  EXPECT_TRUE(eventually([&] { return memory->open_now() == 0; }));
}

}  // namespace
}  // namespace gpufs::testing

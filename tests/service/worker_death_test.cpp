// Workers that die while they change a file: who asked is told, the others go on, and with none
// left every caller ends.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"

namespace gpufs::testing {
namespace {

// A caller that waits for its timeout takes longer.
constexpr std::uint64_t soon_ns = 20'000'000'000, timeout_ns = 5 * soon_ns;

class worker_death_test : public ::testing::TestWithParam<operation> {
 protected:
  static service_rig_options with_workers(unsigned workers) {
    service_rig_options options;
    options.workers = workers;
    options.timeouts = {timeout_ns};
    return options;
  }
  static rig_reply open_to_write(service_rig& rig, const std::string& path) {
    const rig_reply r = rig.open_to_write(path);
    EXPECT_GE(r.result, 0);
    return r;
  }
  // The call that the test is about; 0 or more when it went well.
  static rig_reply change(service_rig& rig, const rig_reply& file, operation on,
                          std::string_view bytes) {
    const std::uint64_t start = platform::now_ns();
    const rig_reply r = on == operation::write ? rig.write(file.node, 3, bytes)
                        : on == operation::truncate
                            ? rig.call({request_code::truncate, file.handle, 0, 3 + bytes.size()})
                            : rig.call({request_code::sync, file.handle, 0, 0});
    EXPECT_LT(platform::now_ns() - start, soon_ns);
    return r;
  }
  void kill_once(operation on) { io_->add({.on = on, .times_max = 1, .worker_death = true}); }
  static bool is_dead(service_rig& rig) {
    return rig.memory().view().reply(0).service.load_relaxed() ==
           static_cast<std::uint32_t>(service_phase::dead);
  }

  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_, 42);
};
INSTANTIATE_TEST_SUITE_P(in, worker_death_test,
                         ::testing::Values(operation::write, operation::truncate, operation::sync),
                         [](const auto& info) {
                           return info.param == operation::write      ? "write"
                                  : info.param == operation::truncate ? "truncate"
                                                                      : "sync";
                         });

TEST_P(worker_death_test, tells_who_asked_and_the_others_go_on) {
  memory_->write("/a", "0123456789");
  service_rig rig(io_, with_workers(4));
  const rig_reply file = open_to_write(rig, "/a");
  for (int death = 1; death < 4; ++death) {
    memory_->write("/a", "0123456789");
    kill_once(GetParam());
    const rig_reply r = change(rig, file, GetParam(), "wwww");
    EXPECT_EQ(r.result, -EIO);
    EXPECT_FALSE(r.abandoned) << "it got no answer";
    EXPECT_EQ(memory_->content("/a"), "0123456789");
    io_->clear();
    for (int i = 0; i < 20; ++i) {
      const rig_reply later = change(rig, file, GetParam(), "wwww");
      EXPECT_FALSE(later.abandoned);
      // Nobody knows what became of that sync: it has failed for all who have the file open.
      if (GetParam() == operation::sync) EXPECT_EQ(later.result, -EIO);
      else EXPECT_GE(later.result, 0);
    }
    EXPECT_EQ(memory_->content("/a"), GetParam() == operation::write      ? "012wwww789"
                                      : GetParam() == operation::truncate ? "0123456"
                                                                          : "0123456789");
  }
  EXPECT_FALSE(is_dead(rig));
  EXPECT_EQ(rig.close(file.handle).result, GetParam() == operation::sync ? -EIO : 0);
}

TEST_P(worker_death_test, of_the_only_one_ends_every_later_call) {
  memory_->write("/a", "0123456789");
  service_rig rig(io_, with_workers(1));
  const rig_reply file = open_to_write(rig, "/a");
  kill_once(GetParam());
  EXPECT_EQ(change(rig, file, GetParam(), "wwww").result, -EIO);
  for (const operation on : {operation::write, operation::truncate, operation::sync})
    EXPECT_EQ(change(rig, file, on, "xxxx").result, -EIO);
  EXPECT_TRUE(is_dead(rig));
  EXPECT_EQ(memory_->content("/a"), "0123456789");
  EXPECT_TRUE(rig.workers().stop(soon_ns));
}

// Many write their own parts of one file, neighbours of each other's. Who is told that it went
// well has its bytes in the file; the others' are there or not, but nobody's elsewhere.
TEST_P(worker_death_test, under_load_loses_nothing_that_was_answered) {
  constexpr unsigned clients_count = 12, rounds = 60, part = 50;
  for (const unsigned workers : {1u, 3u}) {
    const std::string before(clients_count * rounds * part, '-');
    memory_->write("/a", before);
    io_->clear();
    service_rig_options options = with_workers(workers);
    options.slots = clients_count;
    service_rig rig(io_, options);
    const rig_reply file = open_to_write(rig, "/a");
    for (const std::uint64_t nth : {20, 45, 70})
      io_->add({.on = GetParam(), .nth = nth, .worker_death = true});
    std::vector<std::vector<bool>> went_well(clients_count, std::vector<bool>(rounds));
    std::atomic<unsigned> wrong{0}, told{0};
    std::vector<std::thread> clients;
    for (unsigned c = 0; c < clients_count; ++c) {
      clients.emplace_back([&, c] {
        for (unsigned i = 0; i < rounds; ++i) {
          const std::string bytes(part, static_cast<char>('a' + c));
          const std::uint64_t start = platform::now_ns();
          const rig_reply r = rig.write(file.node, (i * clients_count + c) * part, bytes);
          went_well[c][i] = r.result == static_cast<std::int32_t>(part);
          const rig_reply other =
              GetParam() == operation::sync
                  ? rig.call({request_code::sync, file.handle, 0, 0})
                  : rig.call({request_code::truncate, file.handle, 0, before.size()});
          if (platform::now_ns() - start > 2 * soon_ns) ++wrong;
          if (!went_well[c][i] && r.result != -EIO) ++wrong;
          if (other.result != 0 && other.result != -EIO) ++wrong;
          if (r.result == -EIO || other.result == -EIO) ++told;
        }
      });
    }
    for (std::thread& t : clients) t.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_GE(told, workers == 1 ? 100u : 3u);
    EXPECT_TRUE(is_dead(rig));
    const std::string after = memory_->content("/a");
    ASSERT_EQ(after.size(), before.size());
    for (unsigned i = 0; i < rounds; ++i) {
      for (unsigned c = 0; c < clients_count; ++c) {
        const std::string now = after.substr((i * clients_count + c) * part, part);
        const std::string bytes(part, static_cast<char>('a' + c));
        EXPECT_TRUE(now == bytes || (!went_well[c][i] && now == std::string(part, '-')))
            << c << " " << i << now;
      }
    }
    EXPECT_TRUE(rig.workers().stop(soon_ns));
  }
}

}  // namespace
}  // namespace gpufs::testing

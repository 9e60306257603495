// Writes of one file are made by two threads at most at a time, or by six where that is faster;
// those of different files all at once.
#include <gtest/gtest.h>

#include <algorithm>
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

using namespace std::chrono_literals;

class served_writes : public ::testing::Test {
 protected:
  // Several callers, each of which writes bytes of its own to one of the files in turn. How many
  // writes were made at once at most. On a machine that is busy elsewhere short writes may never
  // meet, so they become longer until as many as `enough` did.
  int writes_at_once(service_rig& rig, fault_backend& io, const std::vector<std::uint64_t>& nodes,
                     int enough) {
    int most = 0;
    for (const auto takes : {500us, 5'000us, 50'000us, 500'000us})
      if (most < enough) most = std::max(most, writes_at_once(rig, io, nodes, takes));
    return most;
  }

  int writes_at_once(service_rig& rig, fault_backend& io, const std::vector<std::uint64_t>& nodes,
                     std::chrono::microseconds takes) {
    std::atomic<int> inside{0}, most{0};
    io.clear();
    io.add({.on = operation::write, .before = [&] {
              const int now = inside.fetch_add(1) + 1;
              for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
              }
              std::this_thread::sleep_for(takes);
              inside.fetch_sub(1);
            }});
    std::vector<std::thread> callers;
    for (unsigned c = 0; c < 8; ++c) {
      callers.emplace_back([&, c] {
        for (unsigned i = 0; i < 20; ++i) {
          const std::string bytes(4, static_cast<char>('a' + c));
          const std::uint64_t to = nodes[c % nodes.size()];
          EXPECT_EQ(rig.write(to, (i * 8 + c) * 4, bytes).result, 4);
        }
      });
    }
    for (std::thread& t : callers) t.join();
    io.clear();
    return most;
  }

  std::uint64_t shortest_ns_ = ~std::uint64_t{0};
  const std::shared_ptr<memory_backend> memory_ = std::make_shared<memory_backend>();
  const std::shared_ptr<fault_backend> io_ = std::make_shared<fault_backend>(memory_, 42);
};

TEST_F(served_writes, two_threads_are_at_a_file_at_a_time) {
  service_rig rig(io_, {.workers = 4, .slots = 16});
  const std::uint64_t node = rig.open_to_write("/a").node;
  EXPECT_EQ(rig.open_to_write("/a").node, node);
  EXPECT_EQ(writes_at_once(rig, *io_, {node, node}, 2), 2);
  std::string expected;
  for (unsigned i = 0; i < 20; ++i)
    for (char c = 'a'; c < 'a' + 8; ++c) expected += std::string(4, c);
  EXPECT_EQ(memory_->content("/a"), expected);
}

// Which of two threads would be there for other files?
TEST_F(served_writes, of_two_threads_one_is_at_a_file_at_a_time) {
  service_rig rig(io_, {.workers = 2, .slots = 16});
  const std::uint64_t node = rig.open_to_write("/a").node;
  EXPECT_EQ(writes_at_once(rig, *io_, {node, node}, 1), 1);
}

TEST_F(served_writes, six_threads_are_at_a_file_whose_backend_says_that_they_write_together) {
  const auto io = std::make_shared<fault_backend>(
      std::make_shared<memory_backend>(memory_backend_options{.writes_together = true}), 42);
  for (const auto& [workers, together] : {std::pair{8u, 6}, {4u, 3}}) {
    service_rig rig(io, {.workers = workers, .slots = 16});
    const std::uint64_t node = rig.open_to_write("/a").node;
    EXPECT_EQ(writes_at_once(rig, *io, {node, node}, together), together) << workers;
  }
}

TEST_F(served_writes, different_files_are_written_at_the_same_time) {
  service_rig rig(io_, {.workers = 4, .slots = 16});
  EXPECT_GT(writes_at_once(rig, *io_,
                           {rig.open_to_write("/a").node, rig.open_to_write("/b").node,
                            rig.open_to_write("/c").node},
                           3),
            2);
}

TEST_F(served_writes, another_thread_takes_over_from_one_that_is_busy_elsewhere) {
  service_rig rig(io_, {.workers = 2, .slots = 16});
  const std::uint64_t node = rig.open_to_write("/a").node,
                      other = rig.open_to_write("/other").handle;
  constexpr std::uint64_t enough_ns = 250'000'000;  // less than a sync takes
  for (int i = 0; i < 20 && shortest_ns_ >= enough_ns; ++i) {
    EXPECT_EQ(rig.write(node, 0, "x").result, 1);
    io_->add({.on = operation::sync, .times_max = 1, .delay = 300ms});
    std::thread syncs([&] { EXPECT_EQ(rig.call({request_code::sync, other, 0, 0}).result, 0); });
    const std::uint64_t start = platform::now_ns();
    for (int k = 0; k < 3; ++k) EXPECT_EQ(rig.write(node, 1, "y").result, 1);
    shortest_ns_ = std::min(shortest_ns_, platform::now_ns() - start);
    syncs.join();
    io_->clear();
  }
  EXPECT_LT(shortest_ns_, enough_ns) << "it waits for a thread that syncs another file";
}

TEST(write_permits, are_kept_for_who_had_them) {
  const auto permits = std::make_shared<write_permits>();
  const auto may_take = [&](unsigned who) {
    write_permit permit;
    return permit.take(permits, who, 3);
  };
  {
    write_permit first, second, third;
    ASSERT_TRUE(first.take(permits, 1, 3));
    EXPECT_FALSE(first.is_behind_another());
    ASSERT_TRUE(second.take(permits, 2, 3));
    EXPECT_TRUE(first.is_behind_another());
    EXPECT_TRUE(second.is_behind_another());
    EXPECT_FALSE(third.take(permits, 3, 3));
    EXPECT_FALSE(third.is_behind_another());
  }
  const std::uint64_t start = platform::now_ns();
  const bool both = may_take(2) && may_take(1), other = may_take(3);
  // On a machine that was busy elsewhere meanwhile this says nothing.
  if (platform::now_ns() - start < 100'000) {
    EXPECT_TRUE(both);
    EXPECT_FALSE(other);
  }
  std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(may_take(3));
}

TEST(write_permits, of_those_who_write_together_nobody_is_behind_another) {
  const auto permits = std::make_shared<write_permits>();
  permits->write_together(true);
  write_permit held[7];
  for (unsigned who = 0; who < 7; ++who) {
    EXPECT_EQ(held[who].take(permits, who, 8), who < 6) << who;
    EXPECT_FALSE(held[who].is_behind_another()) << who;
  }
  permits->write_together(false);
  EXPECT_TRUE(held[0].is_behind_another());
}

// A mount remembers a million states of files.
TEST(write_permits, of_a_file_that_nobody_writes_take_no_memory) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "content");
  file_table table(io, 64, 16);
  std::uint64_t reader = 0, writer = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(table.open("/a", false, reader, file), 0);
  EXPECT_EQ(file->permits(), nullptr);
  ASSERT_EQ(table.open_to_change("/a", {}, writer, file), 0);
  const std::weak_ptr<write_permits> permits = file->permits();
  const std::shared_ptr<file_version> version = file->shared_version();
  EXPECT_FALSE(permits.expired());
  file.reset();
  ASSERT_EQ(table.close(writer), 0);
  EXPECT_TRUE(permits.expired());
  ASSERT_EQ(table.close(reader), 0);
  EXPECT_LE(sizeof(file_version), 256u);
}

}  // namespace
}  // namespace gpufs::testing

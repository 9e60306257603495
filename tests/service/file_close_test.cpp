// Closes of files that are open for writing, beside other requests for the same file.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <string_view>
#include <thread>

#include "service/file_table.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

// Groups that ask for one close at the same time open the file as soon as theirs is answered: no
// open joins the writer that is leaving, and bytes that were lost are lost once.
TEST(file_close, all_closes_of_a_handle_return_when_it_is_closed_and_its_loss_told_once) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "a");
  file_table table(io, 64, 1024);
  constexpr std::uint64_t rounds = is_sanitized ? 3'000 : 30'000;
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  std::atomic<std::uint64_t> closed{0};
  std::barrier both(2);
  std::thread another([&] {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      both.arrive_and_wait();
      if (table.close(handle, -EIO) == 0) ++closed;
      both.arrive_and_wait();
    }
  });
  std::uint64_t joined = 0, told_otherwise = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    EXPECT_EQ(table.open_to_change("/a", {}, handle, file), 0);
    both.arrive_and_wait();
    if (table.close(handle, -EIO) == 0) ++closed;
    const file_error_list losses = table.errors().list();
    std::uint64_t next = 0;
    EXPECT_EQ(table.open_to_change("/a", {}, next, file), 0);
    both.arrive_and_wait();
    if (losses.errors.size() != 1 || losses.errors[0].count != round) ++told_otherwise;
    if (file->joined()) ++joined;
    EXPECT_EQ(table.close(next), 0);
  }
  another.join();
  EXPECT_EQ(closed, rounds);
  EXPECT_EQ(joined, 0u);
  EXPECT_EQ(told_otherwise, 0u);
}

TEST(file_close, a_writer_that_is_closed_before_it_is_reached_leaves_the_write_to_another) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "a");
  file_table table(io, 64, 1024);
  std::uint64_t stays = 0, leaves = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(table.open_to_change("/a", {}, stays, file), 0);
  ASSERT_EQ(table.open_to_change("/a", {}, leaves, file), 0);
  const std::uint64_t name = node_name(file->node(), file->version().number);
  ASSERT_EQ(table.find_writer(name), file);
  bool is_closed = false;
  const schedule_hook hook([&](const char* point) {
    if (is_closed || std::string_view(point) != "file_table.reach") return;
    is_closed = true;
    EXPECT_EQ(table.close(leaves), 0);
  });
  file_table::lookups known;
  file_table::lookups::entry* found = nullptr;
  ASSERT_EQ(table.look_up_writer(name, known, found), 0);
  EXPECT_TRUE(is_closed);
  EXPECT_EQ(found->file, table.find(stays));
  EXPECT_EQ(found->reached->write("b", 1, 0), 1);
}

}  // namespace
}  // namespace gpufs::testing

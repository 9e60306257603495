// Faults of the host's I/O: the error reaches the call that met it, no wrong byte reaches anybody,
// and nothing stays broken.
#include <errno.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class failure_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, failure_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(failure_test, a_failed_read_gives_its_error_and_the_next_one_the_bytes) {
  const std::string content = create("a", 8 * page_bytes() + 8192);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  fail(operation::read, EIO);
  EXPECT_EQ(calls().read(fd, 10, 100).result, -EIO);
  EXPECT_EQ(calls().map(fd, 10, 100).result, -EIO);
  const view_answer view = calls().view(fd, 0, 1);
  EXPECT_EQ(view.error, -EIO);
  EXPECT_EQ(view.words.front(), 0u);
  EXPECT_EQ(counted(counter::load_errors), 3u);
  EXPECT_EQ(calls().close(open("a")), 0) << "opens do not read large files";
  io->clear();
  calls().expect_read(fd, content, 10, 100);
  EXPECT_EQ(counted(counter::load_errors), 3u);
  EXPECT_EQ(counted(counter::staged_loads), 1u);
}

TEST_P(failure_test, any_error_of_the_host_comes_through) {
  create("a", 8 * page_bytes() + 8192);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  for (const int error_number : {EIO, EACCES, ENOSPC, ESTALE, ENOMEM, ENXIO}) {
    fail(operation::read, error_number);
    EXPECT_EQ(calls().read(fd, 0, 100).result, -error_number);
    io->clear();
  }
}

TEST_P(failure_test, what_was_read_before_an_error_is_given_first) {
  const std::string content = create("a", 8 * page_bytes() + 8192);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  const std::uint64_t pieces = (page_bytes() + options.staging_bytes - 1) / options.staging_bytes;
  fail(operation::read, EIO, 2 * pieces + 1);  // the first request for the third page
  const read_answer answer = calls().read(fd, 100, 5 * page_bytes());
  EXPECT_EQ(answer.result, static_cast<std::int64_t>(2 * page_bytes() - 100));
  expect_same_bytes(answer.bytes, content.substr(100, 2 * page_bytes() - 100), "before the error");
  calls().expect_read(fd, content, static_cast<std::int64_t>(2 * page_bytes()), 2 * page_bytes());
}

TEST_P(failure_test, cached_pages_come_before_an_error_in_a_large_cache_too) {
  options.cache_bytes = large_cache_frames() * page_bytes();
  const std::string content = create("a", 40 * page_bytes() + 8192);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 0, 11 * page_bytes());
  fail(operation::read, ENXIO);
  const read_answer answer = calls().read(fd, 100, 20 * page_bytes());
  EXPECT_EQ(answer.result, static_cast<std::int64_t>(11 * page_bytes() - 100));
  expect_same_bytes(answer.bytes, content.substr(100, 11 * page_bytes() - 100), "before the error");
  EXPECT_EQ(
      calls().read(fd, static_cast<std::int64_t>(11 * page_bytes()), 20 * page_bytes()).result,
      -ENXIO);
  io->clear();
  calls().expect_read(fd, content, 100, 30 * page_bytes());
}

// A page that comes in several pieces.
class large_page_failure_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, large_page_failure_test,
                         ::testing::ValuesIn(settings({source::memory}, {65536})), name_of_setting);

TEST_P(large_page_failure_test, an_error_within_a_page_leaves_no_part_of_it) {
  ASSERT_GT(page_bytes(), 3 * options.staging_bytes);
  const std::string content = create("a", 4 * page_bytes());
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  fail(operation::read, EIO, 3);
  EXPECT_EQ(calls().read(fd, 0, page_bytes()).result, -EIO);
  calls().expect_read(fd, content, 0, page_bytes());
}

TEST_P(failure_test, a_small_file_opens_although_its_bytes_cannot_be_read) {
  const std::string content = create("a", 1000);
  fail(operation::read, EIO);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  EXPECT_EQ(calls().read(fd, 0, 1000).result, -EIO);
  io->clear();
  calls().expect_read(fd, content, 0, 1000);
}

TEST_P(failure_test, interrupted_and_short_reads_are_continued) {
  const std::string content = create("a", 4 * page_bytes() + 8192);
  const std::string small = create("small", 1000);
  fault interrupted;
  interrupted.on = operation::read;
  interrupted.error_number = EINTR;
  interrupted.every = 2;
  io->add(interrupted);
  fault shortened;
  shortened.on = operation::read;
  shortened.bytes_max = 97;
  io->add(shortened);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 50, 2 * page_bytes());
  calls().expect_read(open("small"), small, 0, 1000);
  EXPECT_GT(io->strikes(), 20u);
}

TEST_P(failure_test, waiting_groups_get_the_error_of_the_load_that_they_wait_for) {
  create("a", 8 * page_bytes() + 8192);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  fault slow;
  slow.on = operation::read;
  slow.delay = std::chrono::milliseconds(5);
  slow.error_number = EIO;
  io->add(slow);
  constexpr std::uint32_t groups = 8;
  stage many(fs(), GetParam().kind, groups);
  device_call set{action::set};
  set.offset = fd;
  device_call read{action::read};
  read.bytes = 8;
  std::vector<script> scripts;
  for (std::uint32_t g = 0; g < groups; ++g) {
    read.memory = g * 8;
    scripts.push_back({set, read, read, read});
  }
  const performance p = many.run(scripts, {}, groups * 8);
  for (const auto& outcomes : p.outcomes) {
    for (std::size_t i = 1; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[i].result, -EIO);
  }
  EXPECT_EQ(p.output, std::string(groups * 8, untouched));
  EXPECT_EQ(counted(counter::load_errors) + counted(counter::minor_faults), groups * 3u);
  io->clear();
  EXPECT_EQ(calls().read(fd, 0, 8).result, 8);
}

}  // namespace
}  // namespace gpufs::testing

// The list of failures that a mount keeps for its host.
#include <errno.h>
#include <gtest/gtest.h>

#include <string>

#include "service/file_error_log.hpp"

namespace gpufs::testing {
namespace {

TEST(file_error_log_test, keeps_failures_in_order_and_counts_equal_ones) {
  file_error_log log;
  log.add("/a", -EIO, file_operation::write_back);
  log.add("/b", -EIO, file_operation::write_back);
  log.add("/a", -ENOSPC, file_operation::write_back);
  log.add("/a", -EIO, file_operation::sync);
  log.add("/a", -EIO, file_operation::write_back, true);
  log.add_discarded("/a", -EIO);
  for (int i = 0; i < 10; ++i) log.add("/a", -EIO, file_operation::write_back);
  const file_error_list list = log.list();
  ASSERT_EQ(list.errors.size(), 6u);
  EXPECT_EQ(list.dropped, 0u);
  EXPECT_EQ(list.errors[0].path, "/a");
  EXPECT_EQ(list.errors[0].error_number, EIO);
  EXPECT_EQ(list.errors[0].count, 11u);
  EXPECT_EQ(list.errors[1].path, "/b");
  EXPECT_EQ(list.errors[2].error_number, ENOSPC);
  EXPECT_STREQ(list.errors[3].operation_name(), "sync");
  EXPECT_TRUE(list.errors[4].at_unmount);
  EXPECT_EQ(list.errors[4].count, 1u);
  EXPECT_TRUE(list.errors[5].discarded);
  EXPECT_STREQ(list.errors[5].operation_name(), "write-back");
  for (std::size_t i = 0; i < list.errors.size(); ++i)
    EXPECT_EQ(file_error_log::is_lost(list.errors[i]), i >= 4);
}

TEST(file_error_log_test, is_bounded_and_says_how_many_it_dropped) {
  file_error_log log;
  for (std::size_t i = 0; i < file_error_log::errors_max + 7; ++i)
    log.add("/" + std::to_string(i), -EIO, file_operation::close);
  log.add("/3", -EIO, file_operation::close);
  const file_error_list list = log.list();
  EXPECT_EQ(list.errors.size(), file_error_log::errors_max);
  EXPECT_EQ(list.dropped, 7u);
  EXPECT_EQ(list.errors[3].count, 2u) << "what is known is counted still";
}

TEST(file_error_log_test, remembers_that_a_loss_was_dropped) {
  file_error_log log;
  for (std::size_t i = 1; i < file_error_log::errors_max + 3; ++i)
    log.add("/" + std::to_string(i), -EIO, file_operation::sync);
  log.add("/lost", -EIO, file_operation::write_back, true);
  EXPECT_FALSE(log.has_dropped_loss()) << "those that were dropped may be tried again";
  for (std::size_t i = 1; i < file_error_log::errors_max; ++i)
    log.add("/" + std::to_string(i), -EIO, file_operation::write_back, true);
  log.add("/lost", -EIO, file_operation::write_back, true);
  EXPECT_FALSE(log.has_dropped_loss()) << "it is in the list";
  log.add("/other", -EIO, file_operation::write_back, true);
  EXPECT_TRUE(log.has_dropped_loss());
}

// A kernel can fail as often as it likes, under as many names.
TEST(file_error_log_test, has_room_for_what_was_lost_however_much_failed_before) {
  file_error_log log;
  for (std::size_t i = 0; i < file_error_log::errors_max; ++i)
    log.add("/" + std::to_string(i), -EFBIG, file_operation::write_back);
  log.add("/1023", -EFBIG, file_operation::write_back);
  log.add("/more", -EFBIG, file_operation::write_back);
  log.add("/lost", -ENOSPC, file_operation::write_back, true);
  log.add("/closed", -EDQUOT, file_operation::close);
  file_error_list list = log.list();
  ASSERT_EQ(list.errors.size(), file_error_log::errors_max);
  EXPECT_EQ(list.errors[0].path, "/0");
  EXPECT_EQ(list.errors[file_error_log::errors_max - 2].path, "/lost");
  EXPECT_TRUE(list.errors[file_error_log::errors_max - 2].at_unmount);
  EXPECT_EQ(list.errors.back().path, "/closed");
  EXPECT_EQ(list.dropped, 4u) << "/more, /1023 twice and /1022";
  for (std::size_t i = 0; i < 2 * file_error_log::errors_max; ++i)
    log.add("/" + std::to_string(i), -EIO, file_operation::sync, true);
  list = log.list();
  EXPECT_EQ(list.errors.size(), file_error_log::errors_max);
  EXPECT_EQ(list.errors[0].path, "/lost");
  EXPECT_EQ(list.errors[1].path, "/closed");
}

}  // namespace
}  // namespace gpufs::testing

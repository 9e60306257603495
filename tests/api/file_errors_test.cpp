// Errors that reach one group of many, or come when the host closes a file: the host can ask for
// them.
#include <errno.h>
#include <gtest/gtest.h>

#include <string>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class file_errors_test : public conformance {
 protected:
  file_error_list errors() { return fs().file_errors(); }
  // That there is one error, and it is this.
  void expect_one(const std::string& name, int error_number, file_operation what) {
    const file_error_list list = errors();
    ASSERT_EQ(list.errors.size(), 1u);
    EXPECT_EQ(list.errors[0].path, files->path(name));
    EXPECT_EQ(list.errors[0].error_number, error_number);
    EXPECT_EQ(list.errors[0].what, what);
    EXPECT_FALSE(list.errors[0].at_unmount);
    EXPECT_GE(list.errors[0].count, 1u);
    EXPECT_EQ(list.dropped, 0u);
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, file_errors_test,
                         ::testing::ValuesIn(settings_of_one_page_size()), name_of_setting);

TEST_P(file_errors_test, what_a_close_of_the_host_reports_is_told_by_the_last_gclose_and_kept) {
  for (const unsigned workers :
       {2u, 4u}) {  // from 4 on openers close, which do not have the descriptor
    options.workers = workers;
    create("a", page_bytes());
    const std::int32_t fd = open("a", O_RDWR);
    ASSERT_EQ(open("a", O_RDWR), fd);
    ASSERT_EQ(calls().write(fd, "some", 5), 4);
    fail(operation::close, EDQUOT);
    EXPECT_EQ(calls().close(fd), 0) << "another has it open";
    EXPECT_EQ(calls().close(fd), -EDQUOT);
    expect_one("a", EDQUOT, file_operation::close);
    io->clear();
    unmount();
  }
}

TEST_P(file_errors_test, unmount_reports_what_a_close_reported) {
  create("a", page_bytes());
  mount fs(options);
  {
    session calls(fs, GetParam().kind);
    const std::int32_t fd = calls.open(files->path("a"), O_RDWR);
    ASSERT_EQ(calls.write(fd, "some", 5), 4);
    fail(operation::close, EDQUOT);
    (void)calls.close(fd);  // a kernel that does not look
  }
  io->clear();
  try {
    fs.unmount();
    ADD_FAILURE() << "bytes may be lost";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EDQUOT);
    EXPECT_EQ(e.path(), files->path("a"));
  }
}

TEST_P(file_errors_test, unmount_asks_for_what_the_close_of_an_open_file_reports) {
  create("a", page_bytes());
  mount fs(options);
  {
    session calls(fs, GetParam().kind);
    ASSERT_EQ(calls.write(calls.open(files->path("a"), O_RDWR), "some", 5), 4);
  }
  fail(operation::close, EIO);
  EXPECT_THROW(fs.unmount(), error);
  const file_error_list list = fs.file_errors();
  ASSERT_EQ(list.errors.size(), 1u);
  EXPECT_EQ(list.errors[0].what, file_operation::close);
  EXPECT_TRUE(list.errors[0].at_unmount);
}

TEST_P(file_errors_test, files_that_are_only_read_are_closed_without_asking) {
  create("a", page_bytes());
  EXPECT_EQ(calls().close(open("a")), 0);
  unmount();
  EXPECT_EQ(io->calls(operation::close), 0u);
}

TEST_P(file_errors_test, failed_write_backs_and_syncs_are_kept) {
  create("a", page_bytes());
  std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  fail(operation::write, ENOSPC);
  EXPECT_EQ(calls().sync(fd), -ENOSPC);
  expect_one("a", ENOSPC, file_operation::write_back);
  io->clear();
  EXPECT_EQ(calls().close(fd), 0);
  fd = open("a", O_RDWR);
  fail(operation::sync, EIO);
  EXPECT_EQ(calls().sync(fd), -EIO);
  const file_error_list list = errors();
  ASSERT_EQ(list.errors.size(), 2u);
  EXPECT_EQ(list.errors[1].what, file_operation::sync);
  EXPECT_EQ(list.errors[1].error_number, EIO);
}

TEST_P(file_errors_test, unmount_reports_what_the_last_gclose_discarded) {
  for (const unsigned workers : {2u, 4u}) {
    options.workers = workers;
    const std::string content = create("a", page_bytes());
    mount fs(options);
    {
      session calls(fs, GetParam().kind);
      const std::int32_t fd = calls.open(files->path("a"), O_RDWR),
                         other = calls.open(files->path("a"), O_WRONLY);
      ASSERT_EQ(calls.write(fd, "some", 5), 4);
      fail(operation::write, ENOSPC);
      EXPECT_EQ(calls.sync(fd), -ENOSPC);
      EXPECT_EQ(calls.close(fd), -ENOSPC);
      for (const file_error& e : fs.file_errors().errors)
        EXPECT_FALSE(e.discarded) << "another may write it";
      EXPECT_EQ(calls.close(other), -ENOSPC);
    }
    io->clear();
    const file_error_list list = fs.file_errors();
    ASSERT_EQ(list.errors.size(), 2u);
    EXPECT_FALSE(list.errors[0].discarded);
    EXPECT_TRUE(list.errors[1].discarded);
    EXPECT_FALSE(list.errors[1].at_unmount);
    EXPECT_EQ(list.errors[1].what, file_operation::write_back);
    EXPECT_EQ(list.errors[1].path, files->path("a"));
    EXPECT_EQ(list.errors[1].count, 1u);
    try {
      fs.unmount();
      ADD_FAILURE() << "bytes are lost";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), ENOSPC);
      EXPECT_EQ(e.path(), files->path("a"));
    }
    expect_content("a", content);
  }
}

// The next ones that write the file lose nothing.
TEST_P(file_errors_test, a_loss_is_of_those_who_had_the_file_open) {
  create("a", page_bytes());
  const std::int32_t reader = open("a", O_RDONLY);
  std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  const std::int32_t shares = open("a", O_RDONLY);
  fail(operation::write, ENOSPC);
  EXPECT_EQ(calls().close(fd), -ENOSPC);
  io->clear();
  fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "more", 5), 4);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().close(shares), 0);
  EXPECT_EQ(calls().close(reader), 0);
  const file_error_list list = errors();
  ASSERT_EQ(list.errors.size(), 2u);
  EXPECT_TRUE(list.errors[1].discarded);
  EXPECT_EQ(list.errors[1].count, 1u);
}

TEST_P(file_errors_test, a_backend_that_throws_is_an_error_too) {
  create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "some", 5), 4);
  fault thrown;
  thrown.on = operation::write;
  thrown.exception = true;
  io->add(thrown);
  EXPECT_EQ(calls().sync(fd), -EIO);
  expect_one("a", EIO, file_operation::write_back);
}

}  // namespace
}  // namespace gpufs::testing

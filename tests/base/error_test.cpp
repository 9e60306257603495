// The text of the host API's exception.
#include "gpufs/error.hpp"

#include <errno.h>
#include <gtest/gtest.h>

#include <string>

namespace gpufs::testing {
namespace {

// A kernel chooses the names of files, and a program prints the text.
TEST(error_test, shows_no_control_characters_of_its_path) {
  const std::string path = "/a\n\x1b]0;title\a\\ \x7f\xc2\x9b\xc3\xa9";
  const error e(EIO, "unmount: write-back", path);
  EXPECT_STREQ(e.what(),
               "unmount: write-back: /a\\x0a\\x1b]0;title\\x07\\x5c \\x7f\\xc2\x9b\xc3\xa9: "
               "Input/output error");
  EXPECT_EQ(e.path(), path);
}

TEST(error_test, shows_an_ordinary_path_as_it_is) {
  EXPECT_STREQ(error(ENOENT, "open", "/a folder/file-1.txt").what(),
               "open: /a folder/file-1.txt: No such file or directory");
  EXPECT_STREQ(error(ENOENT, "open").what(), "open: No such file or directory");
}

}  // namespace
}  // namespace gpufs::testing

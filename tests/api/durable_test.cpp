// What is durable when: the table of docs/api.md. A file that the backend was asked to sync after
// its last write is on the disk; what it was asked to write is the host's, and outlives the
// process.
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class durable_test : public conformance {
 protected:
  durable_test() {
    for (const operation on :
         {operation::write, operation::sync, operation::rename, operation::sync_folder}) {
      fault note;
      note.on = on;
      note.before = [this, on] {
        const std::lock_guard lock(mutex_);
        if (order_.empty() || order_.back() != on) order_.push_back(on);
      };
      io->add(note);
    }
  }
  ~durable_test() override { unmount(); }
  // What was asked of the backend since the last call; the same several times in a row once.
  std::vector<operation> asked() {
    const std::lock_guard lock(mutex_);
    return std::exchange(order_, {});
  }

 private:
  std::mutex mutex_;  // guards order_
  std::vector<operation> order_;
};
using operations = std::vector<operation>;
INSTANTIATE_TEST_SUITE_P(conformance, durable_test,
                         ::testing::ValuesIn(settings_of_one_page_size()), name_of_setting);

TEST_P(durable_test, what_gwrite_wrote_is_in_the_mount_only) {
  const std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "written", 0), 7);
  EXPECT_EQ(calls().read(fd, 0, 7).bytes, "written");
  EXPECT_EQ(asked(), operations{});
  expect_content("a", content);
}

TEST_P(durable_test, gclose_gives_it_to_the_host) {
  std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "written", 0), 7);
  ASSERT_EQ(calls().close(fd), 0);
  EXPECT_EQ(asked(), operations{operation::write});
  expect_content("a", content.replace(0, 7, "written"));
}

TEST_P(durable_test, gfsync_brings_it_to_the_disk) {
  std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "written", 0), 7);
  ASSERT_EQ(calls().sync(fd), 0);
  EXPECT_EQ(asked(), (operations{operation::write, operation::sync}));
  expect_content("a", content.replace(0, 7, "written"));
}

TEST_P(durable_test, grename_is_durable_after_sync_folder) {
  create("a", page_bytes());
  ASSERT_EQ(calls().rename(files->path("a"), files->path("b")), 0);
  EXPECT_EQ(asked(), operations{operation::rename});
  if (GetParam().where != source::posix) return;  // there are no folders
  fs().sync_folder(files->path("."));
  EXPECT_EQ(asked(), operations{operation::sync_folder});
}

TEST_P(durable_test, unmount_brings_what_is_open_to_the_disk) {
  std::string content = create("a", page_bytes());
  ASSERT_EQ(calls().write(open("a", O_RDWR), "written", 0), 7);
  unmount();
  EXPECT_EQ(asked(), (operations{operation::write, operation::sync}));
  expect_content("a", content.replace(0, 7, "written"));
}

}  // namespace
}  // namespace gpufs::testing

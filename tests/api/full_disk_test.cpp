// A file system that is really full: the kernel takes a part of what is written, then says ENOSPC.
// The program hears of it, what was synced stays what it was, and nothing is lost that can be
// written once there is room.
#include <errno.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "api/matrix.hpp"
#include "support/small_file_system.hpp"

namespace gpufs::testing {
namespace {

constexpr std::uint64_t room_bytes = std::uint64_t{1} << 20;

// A mount, and the files around it as the host sees them.
class small_world {
 public:
  small_world(std::string folder, group_kind kind, mount_options options)
      : folder_(std::move(folder)), fs_(options), calls_(fs_, kind) {}

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::int32_t open(const std::string& name, int flags) { return calls_.open(path(name), flags); }
  session& calls() { return calls_; }

  // A file of the host's that leaves so many bytes for others.
  void leave(std::uint64_t bytes) const {
    const std::uint64_t free = std::filesystem::space(folder_).available;
    ASSERT_GT(free, bytes);
    std::ofstream(path("filler"), std::ios::binary) << std::string(free - bytes, 'F');
    ASSERT_EQ(std::filesystem::space(folder_).available, bytes);
  }
  void make_room() const { std::filesystem::remove(path("filler")); }
  std::string content(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  // Later calls of the program, on another file.
  void expect_all_works() {
    const std::string content = self_checking(9, 9, 0, 30'000);
    const std::int32_t fd = open("later", O_RDWR | O_CREAT);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(calls_.write(fd, content, 0), 30'000);
    EXPECT_EQ(calls_.sync(fd), 0);
    calls_.expect_read(fd, content, 0, 40'000);
    EXPECT_EQ(calls_.close(fd), 0);
    expect_same_bytes(this->content("later"), content, "later");
  }

 private:
  const std::string folder_;
  mount fs_;
  session calls_;
};

// Large enough for a file that is larger than the file system.
mount_options roomy_options() {
  mount_options options = base_options();
  options.cache_bytes = 4 * room_bytes;
  return options;
}

class full_disk : public ::testing::TestWithParam<group_kind> {};
INSTANTIATE_TEST_SUITE_P(by, full_disk, ::testing::ValuesIn(all_kinds), name_of_kind);

TEST_P(full_disk, what_was_synced_stays_and_the_rest_goes_when_there_is_room) {
  in_small_file_system(room_bytes, [kind = GetParam()](const std::string& folder) {
    small_world world(folder, kind, roomy_options());
    world.leave(300'000 / 4096 * 4096);
    const std::int32_t fd = world.open("a", O_RDWR | O_CREAT);
    ASSERT_GE(fd, 0);
    std::string content = self_checking(1, 0, 0, 100'000);
    ASSERT_EQ(world.calls().write(fd, content, 0), 100'000);
    ASSERT_EQ(world.calls().sync(fd), 0);
    // Behind it, and not at a page's beginning.
    const std::string more = self_checking(1, 1, 100'000, 600'000);
    ASSERT_EQ(world.calls().write(fd, more, 100'000), 600'000);
    EXPECT_EQ(world.calls().sync(fd), -ENOSPC);
    expect_same_bytes(world.content("a").substr(0, 100'000), content, "what was synced");
    content += more;
    EXPECT_EQ(world.calls().sync(fd), -ENOSPC) << "it cannot be written still";
    world.calls().expect_read(fd, content, 0, content.size() + 1);
    world.make_room();
    EXPECT_EQ(world.calls().sync(fd), 0);
    expect_same_bytes(world.content("a"), content, "a");
    EXPECT_EQ(world.calls().sync(fd), 0);
    EXPECT_EQ(world.calls().close(fd), 0);
    expect_same_bytes(world.content("a"), content, "a");
    world.expect_all_works();
  });
}

// Pages leave the cache while the file is written, too: nobody asks for an error then.
TEST_P(full_disk, a_file_that_does_not_fit_can_be_cut_and_then_goes) {
  in_small_file_system(room_bytes, [kind = GetParam()](const std::string& folder) {
    small_world world(folder, kind, roomy_options());
    world.leave(8 * 4096);
    const std::int32_t fd = world.open("a", O_RDWR | O_CREAT);
    const std::string content = self_checking(2, 0, 0, room_bytes + room_bytes / 2);
    ASSERT_EQ(world.calls().write(fd, content, 0), static_cast<std::int64_t>(content.size()));
    world.make_room();  // and not enough
    EXPECT_EQ(world.calls().sync(fd), -ENOSPC);
    EXPECT_EQ(world.calls().truncate(fd, room_bytes / 2), 0);
    EXPECT_EQ(world.calls().sync(fd), 0);
    expect_same_bytes(world.content("a"), content.substr(0, room_bytes / 2), "a");
    EXPECT_EQ(world.calls().close(fd), 0);
    world.expect_all_works();
  });
}

TEST_P(full_disk, an_error_of_a_write_back_ahead_is_told_once_although_all_was_written_since) {
  in_small_file_system(room_bytes, [kind = GetParam()](const std::string& folder) {
    mount_options options = base_options();
    options.cache_bytes = room_bytes;
    small_world world(folder, kind, options);
    world.leave(8 * 4096);
    const std::int32_t fd = world.open("a", O_RDWR | O_CREAT);
    // More than a quarter of the cache.
    const std::string content = self_checking(3, 0, 0, room_bytes / 2);
    ASSERT_EQ(world.calls().write(fd, content, 0), static_cast<std::int64_t>(content.size()));
    world.make_room();
    EXPECT_EQ(world.calls().sync(fd), -ENOSPC);
    expect_same_bytes(world.content("a"), content, "a");
    EXPECT_EQ(world.calls().sync(fd), 0) << "it was told already";
    EXPECT_EQ(world.calls().close(fd), 0);
    world.expect_all_works();
  });
}

// Neither room in the file system nor frames: writers are told, and wait for nothing.
TEST_P(full_disk, a_file_larger_than_cache_and_disk_ends_in_errors_and_its_close_tells) {
  in_small_file_system(room_bytes, [kind = GetParam()](const std::string& folder) {
    mount_options options = base_options();
    options.cache_bytes = room_bytes / 4;
    options.reclaim_timeout = std::chrono::milliseconds(20);
    small_world world(folder, kind, options);
    const std::int32_t fd = world.open("a", O_RDWR | O_CREAT);
    const std::string content = self_checking(4, 0, 0, 2 * room_bytes);
    std::uint64_t written = 0;
    std::int64_t result = 0;
    while (written < content.size()) {
      result = world.calls().write(fd, content.substr(written, 50'000),
                                   static_cast<std::int64_t>(written));
      if (result < 0) break;
      written += static_cast<std::uint64_t>(result);
    }
    EXPECT_EQ(result, -ENOBUFS);
    EXPECT_GE(written, room_bytes);
    EXPECT_LT(written, room_bytes + room_bytes / 2);
    EXPECT_EQ(world.calls().close(fd), -ENOSPC);
    const std::string left = world.content("a");
    ASSERT_LE(left.size(), written);
    // A hole where a page could not be written; never anything else.
    for (std::uint64_t i = 0; i < left.size(); ++i)
      ASSERT_TRUE(left[i] == content[i] || left[i] == '\0') << "byte " << i;
    EXPECT_EQ(world.calls().unlink(world.path("a")), 0);
    world.expect_all_works();
  });
}

TEST_P(full_disk, the_last_close_says_what_is_lost_and_the_next_one_nothing) {
  in_small_file_system(room_bytes, [kind = GetParam()](const std::string& folder) {
    small_world world(folder, kind, roomy_options());
    std::int32_t fd = world.open("a", O_RDWR | O_CREAT);
    const std::string content = self_checking(5, 0, 0, 40'960);
    ASSERT_EQ(world.calls().write(fd, content, 0), 40'960);
    ASSERT_EQ(world.calls().sync(fd), 0);
    world.leave(0);
    ASSERT_EQ(world.calls().write(fd, std::string(50'000, 'x'), 40'960), 50'000);
    EXPECT_EQ(world.calls().close(fd), -ENOSPC);
    expect_same_bytes(world.content("a").substr(0, 40'960), content, "what was synced");
    world.make_room();
    fd = world.open("a", O_RDWR);
    ASSERT_GE(fd, 0);
    world.calls().expect_read(fd, content, 0, 40'960);
    EXPECT_EQ(world.calls().sync(fd), 0) << "it belongs to who had the file open before";
    EXPECT_EQ(world.calls().close(fd), 0);
    world.expect_all_works();
  });
}

// A hole is filled by a store through a pointer.
TEST_P(full_disk, a_mapping_that_cannot_be_written_is_told_by_msync_and_stays) {
  in_small_file_system(room_bytes, [kind = GetParam()](const std::string& folder) {
    small_world world(folder, kind, roomy_options());
    const std::int32_t fd = world.open("a", O_RDWR | O_CREAT);
    ASSERT_EQ(world.calls().truncate(fd, 40'000), 0);
    ASSERT_EQ(world.calls().sync(fd), 0);
    world.leave(0);
    const map_answer m = world.calls().map_write(fd, 8192, 4096);
    ASSERT_EQ(m.result, 4096);
    EXPECT_EQ(world.calls().poke(m.pointer + 7, "stored"), 6);
    EXPECT_EQ(world.calls().msync(fd, m.pointer, 4096), -ENOSPC);
    EXPECT_EQ(world.calls().msync(fd, m.pointer, 4096), -ENOSPC);
    world.make_room();
    EXPECT_EQ(world.calls().msync(fd, m.pointer, 4096), 0);
    std::string content(40'000, '\0');
    content.replace(8192 + 7, 6, "stored");
    expect_same_bytes(world.content("a"), content, "a");
    EXPECT_EQ(world.calls().unmap_write(fd, m.pointer, 4096), 0);
    EXPECT_EQ(world.calls().sync(fd), 0) << "it was told already";
    EXPECT_EQ(world.calls().close(fd), 0);
    world.expect_all_works();
  });
}

}  // namespace
}  // namespace gpufs::testing

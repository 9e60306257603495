// Symbolic links that an open with `create` meets: links that appear during the call, and links to
// files that do not exist.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "gpufs/backend.hpp"
#include "support/failing_calls.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

enum class paths { everywhere, below_a_root };
void PrintTo(paths p, std::ostream* out) {
  *out << (p == paths::everywhere ? "everywhere" : "below_a_root");
}

class links : public ::testing::TestWithParam<paths> {
 protected:
  links() {
    posix_backend_options options;
    if (is_rooted()) options.root = folder_ / "";
    io_ = make_posix_backend(options);
  }
  static bool is_rooted() { return GetParam() == paths::below_a_root; }
  // Returns the status, and the inode of the opened file.
  struct opened {
    int status;
    std::uint64_t inode;
  };
  opened create(const std::string& name, bool no_follow) const {
    const open_how how{.no_follow = no_follow, .create = true, .mode = 0600};
    std::unique_ptr<backend_file> file;
    const int status = io_->open_to_change(is_rooted() ? name : folder_ / name, how, file);
    file_identity identity;
    if (file != nullptr) {
      EXPECT_EQ(file->identify(identity), 0);
    }
    return {status, identity.inode};
  }
  // As create(), of a path whose first lookup finds nothing. So what is there appears between the
  // lookup and the creation.
  opened create_meanwhile(const std::string& name, bool no_follow) const {
    const failing_calls lookup(is_rooted() ? "openat2" : "openat", 1, false, ENOENT);
    const opened result = create(name, no_follow);
    EXPECT_TRUE(lookup.has_struck());
    return result;
  }
  void make_link(const std::string& name, const std::string& target) const {
    std::filesystem::create_symlink(target, folder_ / name);
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  std::uint64_t inode_of(const std::string& name) const {
    struct stat s{};
    EXPECT_EQ(stat((folder_ / name).c_str(), &s), 0) << name;
    return s.st_ino;
  }

  const temporary_folder folder_;
  std::shared_ptr<backend> io_;
};
INSTANTIATE_TEST_SUITE_P(, links, ::testing::Values(paths::everywhere, paths::below_a_root),
                         ::testing::PrintToStringParamName());

TEST_P(links, that_appear_during_a_call_are_not_followed_with_no_follow) {
  folder_.write("file", "content");
  make_link("to-file", "file");
  make_link("to-nothing", "nothing");
  EXPECT_EQ(create_meanwhile("to-file", true).status, -ELOOP);
  EXPECT_EQ(create_meanwhile("to-nothing", true).status, -ELOOP);
  EXPECT_FALSE(exists("nothing"));
}

TEST_P(links, that_appear_during_a_call_are_followed_without_no_follow) {
  folder_.write("file", "content");
  make_link("to-file", "file");
  make_link("to-nothing", "nothing");
  const opened file = create_meanwhile("to-file", false),
               made = create_meanwhile("to-nothing", false);
  EXPECT_EQ(file.status, 0);
  EXPECT_EQ(file.inode, inode_of("file"));
  EXPECT_EQ(made.status, 0);
  EXPECT_EQ(made.inode, inode_of("nothing"));
}

TEST_P(links, files_that_appear_during_a_call_are_opened) {
  folder_.write("file", "content");
  for (const bool no_follow : {false, true}) {
    const opened file = create_meanwhile("file", no_follow);
    EXPECT_EQ(file.status, 0);
    EXPECT_EQ(file.inode, inode_of("file"));
  }
}

TEST_P(links, that_come_and_go_are_never_followed_with_no_follow) {
  folder_.write("file", "content");
  const std::uint64_t file = inode_of("file");
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    while (!is_done) {
      (void)symlink("file", (folder_ / "name").c_str());
      (void)unlink((folder_ / "name").c_str());
    }
  });
  int followed = 0, refused = 0, made = 0, others = 0;
  for (int i = 0; i < 20'000; ++i) {
    const opened o = create("name", true);
    if (o.status == -ELOOP) ++refused;
    else if (o.status != 0) ++others;
    else if (o.inode == file) ++followed;
    else ++made;
    (void)unlink((folder_ / "name").c_str());
  }
  is_done = true;
  other.join();
  EXPECT_EQ(followed, 0) << "refused " << refused << ", made " << made;
  EXPECT_EQ(others, 0);
  EXPECT_GT(made, 0);
}

// They are followed if fs.protected_symlinks is 0.
TEST_P(links, of_others_that_appear_in_folders_of_all_are_judged_by_the_kernel) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make links of other users";
  int is_protected = 0;
  std::ifstream("/proc/sys/fs/protected_symlinks") >> is_protected;
  std::filesystem::create_directory(folder_ / "folder");
  ASSERT_EQ(chmod((folder_ / "folder").c_str(), 01777), 0);
  folder_.write("file", "content");
  make_link("folder/link", "../file");
  ASSERT_EQ(lchown((folder_ / "folder/link").c_str(), 65002, 0), 0);
  EXPECT_EQ(create_meanwhile("folder/link", false).status, is_protected != 0 ? -EACCES : 0);
}

// As fs.protected_symlinks of Linux: in a sticky folder that everybody may write, only links of the
// caller and of the folder's owner are followed.
TEST_P(links, to_nothing_are_followed_in_folders_of_all_only_if_they_are_the_callers_or_owners) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make links of other users";
  constexpr uid_t caller = 0, owner = 65001, stranger = 65002;
  constexpr mode_t for_all = 0777, sticky = S_ISVTX;
  const struct {
    mode_t mode;
    uid_t folder, link;
    int status;
  } cases[] = {
      {sticky | for_all, caller, stranger, -EACCES},
      {sticky | for_all, owner, stranger, -EACCES},
      {sticky | for_all, owner, caller, 0},
      {sticky | for_all, owner, owner, 0},
      {for_all, owner, stranger, 0},
      {sticky | 0775, owner, stranger, 0},
  };
  std::filesystem::create_directory(folder_ / "folder");
  make_link("folder/link", "../target");
  for (const auto& c : cases) {
    ASSERT_EQ(chown((folder_ / "folder").c_str(), c.folder, 0), 0);
    ASSERT_EQ(chmod((folder_ / "folder").c_str(), c.mode), 0);
    ASSERT_EQ(lchown((folder_ / "folder/link").c_str(), c.link, 0), 0);
    SCOPED_TRACE(::testing::Message()
                 << std::oct << c.mode << std::dec << " of " << c.folder << ", link of " << c.link);
    EXPECT_EQ(create("folder/link", false).status, c.status);
    EXPECT_EQ(exists("target"), c.status == 0);
    (void)unlink((folder_ / "target").c_str());
  }
}

}  // namespace
}  // namespace gpufs::testing

// What a kernel may do to its host, whatever it writes into the channel: requests x read-only or
// not x root or not x kinds of files. The host's files are compared before and after.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/fault_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/service_rig.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

struct policy {
  bool read_only, rooted;
};
void PrintTo(const policy& p, std::ostream* out) {
  *out << (p.read_only ? "read_only" : "writable") << (p.rooted ? "_rooted" : "");
}

// Of each path below a folder: type and mode, and the content or the link's target.
using tree = std::map<std::string, std::string>;
tree tree_of(const std::string& folder) {
  tree all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    struct stat s{};
    EXPECT_EQ(lstat(entry.path().c_str(), &s), 0);
    std::string facts = std::to_string(s.st_mode) + " ";
    if (S_ISLNK(s.st_mode)) facts += std::filesystem::read_symlink(entry.path());
    if (S_ISREG(s.st_mode)) {
      std::ifstream file(entry.path());
      facts.append(std::istreambuf_iterator<char>(file), {});
    }
    all[entry.path()] = facts;
  }
  return all;
}

class policies : public ::testing::TestWithParam<policy> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(outer_ / "root/folder");
    outer_.write("secret", "nobody's");
    outer_.write("root/file", "content");
    outer_.write("root/folder/inner", "inner content");
    std::filesystem::create_symlink("../secret", outer_ / "root/out");
    std::filesystem::create_symlink("file", outer_ / "root/in");
    std::filesystem::create_symlink("../made", outer_ / "root/nowhere");
    ASSERT_EQ(mkfifo((outer_ / "root/fifo").c_str(), 0600), 0);
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = outer_ / "root/socket";
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path.c_str(), path.size());
    ASSERT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    // Only root may make a device, and not everywhere.
    has_device_ = mknod((outer_ / "root/device").c_str(), S_IFCHR | 0600, makedev(1, 5)) == 0;

    posix_backend_options posix;
    if (GetParam().rooted) posix.root = outer_ / "root";
    service_rig_options options;
    options.read_only = GetParam().read_only;
    rig_ = std::make_unique<service_rig>(make_posix_backend(posix), options);
  }
  void TearDown() override { (void)::close(listener_); }

  // As this mount is to be asked for a file that lies in the root.
  std::string name(const std::string& inside) const {
    return GetParam().rooted ? inside : outer_ / ("root/" + inside);
  }
  struct subject {
    std::string path;
    int opened;  // what an open is to say
  };
  // What requests that change names may be aimed at: only what lies in the test's own folder. If
  // the policy fails in a test that root runs, nothing of the machine's is removed.
  std::vector<subject> own_subjects() const {
    const bool rooted = GetParam().rooted;
    std::vector<subject> all{{name("file"), 0},
                             {name("in"), 0},
                             {name("folder"), -EISDIR},
                             {name("folder/inner"), 0},
                             {name("fifo"), -EINVAL},
                             {name("socket"), -EINVAL},
                             {name("none"), -ENOENT},
                             {name("out"), rooted ? -EXDEV : 0},
                             {name("nowhere"), rooted ? -EXDEV : -ENOENT},
                             {outer_ / "secret", rooted ? -EXDEV : 0}};
    if (rooted) all.push_back({"../secret", -EXDEV});
    if (has_device_) all.push_back({name("device"), -EINVAL});
    return all;
  }
  // What opens may be aimed at.
  std::vector<subject> subjects() const {
    const int refused = GetParam().rooted ? -EXDEV : -EINVAL;
    std::vector<subject> all = own_subjects();
    for (const char* const path : {"/dev/null", "/dev/zero", "/proc/self/mem"})
      all.push_back({path, refused});
    return all;
  }
  rig_reply call(request_code code, std::uint64_t handle, std::uint64_t offset,
                 const std::string& path) const {
    return rig_->call({code, handle, static_cast<std::uint32_t>(path.size()), offset}, path);
  }
  // Whatever may be done with a handle, or a node, by a kernel that guesses.
  std::vector<std::int32_t> change_through(std::uint64_t handle, std::uint64_t version) const {
    std::vector<std::int32_t> results;
    for (const std::uint64_t size : {0, 3, 100'000})
      results.push_back(rig_->call({request_code::truncate, handle, 0, size}).result);
    results.push_back(rig_->call({request_code::sync, handle, 0, 0}).result);
    for (std::uint32_t node = 0; node < 4; ++node)
      results.push_back(rig_->write(node_name(node, version), 0, "overwritten").result);
    return results;
  }

  const temporary_folder outer_;
  int listener_ = -1;
  bool has_device_ = false;
  std::unique_ptr<service_rig> rig_;
};
INSTANTIATE_TEST_SUITE_P(, policies,
                         ::testing::Values(policy{false, false}, policy{false, true},
                                           policy{true, false}, policy{true, true}),
                         ::testing::PrintToStringParamName());

TEST_P(policies, opens_to_read_change_nothing) {
  const tree before = tree_of(outer_ / "");
  for (const subject& s : subjects()) {
    const rig_reply opened = rig_->open(s.path);
    EXPECT_EQ(opened.result, s.opened) << s.path;
    if (opened.result < 0) continue;
    EXPECT_EQ(rig_->read(opened.handle, 0, 4).result, 4) << s.path;
    for (const std::int32_t result : change_through(opened.handle, opened.version))
      EXPECT_EQ(result, GetParam().read_only ? -EROFS : -EBADF) << s.path;
    EXPECT_EQ(rig_->close(opened.handle).result, 0);
    EXPECT_EQ(rig_->read(opened.handle, 0, 4).result, -EBADF) << s.path;
  }
  EXPECT_EQ(tree_of(outer_ / ""), before);
}

TEST_P(policies, opens_to_change_follow_the_policy) {
  const tree before = tree_of(outer_ / "");
  for (const subject& s : subjects()) {
    for (std::uint32_t bits = 0; bits < 32; ++bits) {
      if ((bits & open_creates) != 0 && !GetParam().read_only && s.opened == -ENOENT) continue;
      const rig_reply opened = call(request_code::open_write, bits, 07777, s.path);
      if (GetParam().read_only) {
        EXPECT_EQ(opened.result, -EROFS) << s.path << " " << bits;
        continue;
      }
      const bool links = std::filesystem::is_symlink(s.path) || s.path == "in" || s.path == "out" ||
                         s.path == "nowhere";
      int expected = s.opened;
      if ((bits & open_creates) != 0 && (bits & open_exclusive) != 0) {
        // The folder that the name is in decides first.
        expected = GetParam().rooted && (s.path.starts_with("/") || s.path.starts_with(".."))
                       ? -EXDEV
                   : s.path.starts_with("/proc") ? -EINVAL
                                                 : -EEXIST;
      } else if ((bits & open_no_follow) != 0 && links) {
        expected = -ELOOP;
      }
      EXPECT_EQ(opened.result, expected) << s.path << " " << bits;
      if (opened.result < 0) continue;
      EXPECT_EQ(rig_->close(opened.handle).result, 0);
      // With its names a kernel writes to nothing any more, also when they are in use again.
      const rig_reply next = rig_->open(s.path);
      for (const std::int32_t result : change_through(opened.handle, opened.version))
        EXPECT_EQ(result, -EBADF) << s.path << " " << bits;
      EXPECT_EQ(rig_->close(opened.handle).result, -EBADF);
      EXPECT_EQ(rig_->close(next.handle).result, 0);
    }
  }
  EXPECT_EQ(tree_of(outer_ / ""), before);
}

TEST_P(policies, names_change_only_in_a_writable_mount_and_below_its_root) {
  const tree before = tree_of(outer_ / "");
  const std::string outside = outer_ / "secret";
  const auto renamed = [&](const std::string& path, const std::string& to) {
    return call(request_code::rename, 0, 0, path + '\0' + to).result;
  };
  if (GetParam().read_only) {
    for (const subject& s : own_subjects()) {
      EXPECT_EQ(call(request_code::unlink, 0, 0, s.path).result, -EROFS) << s.path;
      EXPECT_EQ(renamed(s.path, name("other")), -EROFS) << s.path;
      EXPECT_EQ(renamed(name("file"), s.path), -EROFS) << s.path;
    }
    EXPECT_EQ(call(request_code::unlink, 0, 0, "").result, -EROFS);
    EXPECT_EQ(tree_of(outer_ / ""), before);
    return;
  }
  EXPECT_EQ(call(request_code::unlink, 0, 0, "/proc/self/mem").result,
            GetParam().rooted ? -EXDEV : -EINVAL);
  EXPECT_EQ(renamed(name("file"), "/proc/self/file"), GetParam().rooted ? -EXDEV : -EINVAL);
  if (GetParam().rooted) {
    EXPECT_EQ(call(request_code::unlink, 0, 0, outside).result, -EXDEV);
    EXPECT_EQ(call(request_code::unlink, 0, 0, "../secret").result, -EXDEV);
    EXPECT_EQ(renamed("file", "../file"), -EXDEV);
    EXPECT_EQ(renamed("../secret", "here"), -EXDEV);
  }
  EXPECT_EQ(call(request_code::unlink, 0, 0, name("folder")).result, -EISDIR);
  EXPECT_EQ(tree_of(outer_ / ""), before);
  EXPECT_EQ(call(request_code::unlink, 0, 0, name("out")).result, 0)
      << "the link, not what it leads to";
  EXPECT_EQ(renamed(name("file"), name("folder/file")), 0);
  tree after = before;
  after.erase(outer_ / "root/out");
  after[outer_ / "root/folder/file"] = after[outer_ / "root/file"];
  after.erase(outer_ / "root/file");
  EXPECT_EQ(tree_of(outer_ / ""), after);
}

TEST_P(policies, a_file_is_made_without_special_mode_bits_and_below_the_root) {
  const tree before = tree_of(outer_ / "");
  const std::uint32_t bits = open_reads | open_writes | open_creates;
  if (GetParam().read_only) {
    EXPECT_EQ(call(request_code::open_write, bits, 04777, name("made")).result, -EROFS);
    EXPECT_EQ(tree_of(outer_ / ""), before);
    return;
  }
  ASSERT_EQ(call(request_code::open_write, bits, 07777, name("made")).result, 0);
  struct stat s{};
  ASSERT_EQ(stat((outer_ / "root/made").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 07000, 0u);
  EXPECT_EQ(s.st_mode & 0700, 0700u);
  const rig_reply through_link = call(request_code::open_write, bits, 0600, name("nowhere"));
  EXPECT_EQ(through_link.result, GetParam().rooted ? -EXDEV : 0);
  EXPECT_EQ(std::filesystem::exists(outer_ / "made"), !GetParam().rooted);
}

// Nothing of it can be lost, whatever a kernel asks for, so an unmount has nothing to report.
TEST_P(policies, a_file_that_is_only_read_has_no_errors_to_list) {
  const rig_reply opened = rig_->open(name("file"));
  ASSERT_EQ(opened.result, 0);
  for (const request_code code : {request_code::sync, request_code::report_close})
    EXPECT_LT(rig_->call({code, opened.handle, 0, 0}).result, 0);
  for (const std::int32_t result : change_through(opened.handle, opened.version))
    EXPECT_LT(result, 0);
  EXPECT_TRUE(rig_->files().errors().list().errors.empty());
}

TEST(errors_of_files, are_not_those_of_opening_one_again_that_is_only_read) {
  const auto memory = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(memory);
  service_rig_options options;
  options.descriptors_max = 16;
  service_rig rig(io, options);
  memory->write("/a", "content");
  const std::uint64_t handle = rig.open("/a").handle;
  // So many others that its descriptor is closed.
  for (int i = 0; i < 64; ++i) {
    memory->write("/" + std::to_string(i), "other");
    EXPECT_EQ(rig.open("/" + std::to_string(i)).result, 0);
  }
  io->add({.on = operation::open, .path = "/a", .error_number = EACCES});
  for (const request_code code : {request_code::sync, request_code::report_close})
    EXPECT_EQ(rig.call({code, handle, 0, 0}).result, -EACCES);
  EXPECT_TRUE(rig.files().errors().list().errors.empty());
}

// ---- reads end where the file does

// Files that say that they are empty and give bytes all the same, as some of the kernel's do.
class hollow_backend final : public backend {
 public:
  class file final : public backend_file {
   public:
    int identify(file_identity& identity) override {
      identity = {};
      identity.mode = S_IFREG | 0600;
      return 0;
    }
    std::int64_t read(char* to, std::uint64_t bytes, std::uint64_t) override {
      std::memset(to, 'x', bytes);
      return static_cast<std::int64_t>(bytes);
    }
    std::unique_ptr<file_mapping> map(std::uint64_t, std::uint64_t) override { return nullptr; }
    double cached(const file_mapping&, std::uint64_t) override { return 0; }
    void read_ahead(std::uint64_t, std::uint64_t) override {}
  };
  int open(const std::string&, bool, std::unique_ptr<backend_file>& opened) override {
    opened = std::make_unique<file>();
    return 0;
  }
  int open_to_change(const std::string& path, const open_how&,
                     std::unique_ptr<backend_file>& opened) override {
    return open(path, false, opened);
  }
};

TEST(reads, bytes_past_the_size_of_a_file_are_not_read) {
  service_rig rig(std::make_shared<hollow_backend>());
  const std::uint64_t handle = rig.open("/hollow", 100).handle;
  EXPECT_EQ(rig.read(handle, 0, 100).result, 0);
  EXPECT_EQ(rig.read(handle, 4096, 100).result, 0);
  EXPECT_EQ(rig.bulk(handle, 0, 8192, 0).result, 0);
  EXPECT_EQ(rig.bulk(handle, 4096, 4096, 1).result, 0);
  EXPECT_EQ(rig.frames(), std::string(rig.frames().size(), '?'));
}

// While the mount writes a file, it may grow at any time.
TEST(reads, bytes_past_the_size_are_not_read_after_the_last_writer_has_left) {
  service_rig rig(std::make_shared<hollow_backend>());
  const rig_reply writer = rig.open_to_write("/hollow");
  const std::uint64_t handle = rig.open("/hollow", 100).handle;
  EXPECT_EQ(rig.read(handle, 4096, 100).result, 100);
  EXPECT_EQ(rig.call({request_code::close_written, writer.handle, 0, 0}).result, 0);
  EXPECT_EQ(rig.read(handle, 4096, 100).result, 0);
  EXPECT_EQ(rig.bulk(handle, 0, 8192, 0).result, 0);
}

TEST(reads, a_file_that_has_grown_is_read_to_its_new_end) {
  const auto io = std::make_shared<memory_backend>();
  io->write("/a", "0123456789");
  service_rig rig(io);
  const std::uint64_t handle = rig.open("/a").handle;
  EXPECT_EQ(rig.read(handle, 10, 100).result, 0);
  io->write_at("/a", 10, "abcdef");
  EXPECT_EQ(rig.read(handle, 10, 100).bytes, "abcdef");
  EXPECT_EQ(rig.read(handle, 12, 2).bytes, "cd");
  const rig_reply writer = rig.open_to_write("/a");
  ASSERT_EQ(rig.write(writer.node, 16, "ghi").result, 3);
  EXPECT_EQ(rig.read(writer.handle, 14, 100).bytes, "efghi");
  EXPECT_EQ(rig.read(handle, 16, 100).bytes, "ghi");
}

}  // namespace
}  // namespace gpufs::testing

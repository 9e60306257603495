// gopen, gclose and gfstat: descriptors, sharing of open files, and each error.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class open_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, open_test, ::testing::ValuesIn(settings_of_one_page_size()),
                         name_of_setting);

TEST_P(open_test, opens_and_closes) {
  create("a", 100);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  EXPECT_EQ(fs().stats().host_open_files, 1u);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(counted(counter::opens), 1u);
  EXPECT_EQ(counted(counter::closes), 1u);
}

TEST_P(open_test, opening_an_open_file_makes_no_round_trip) {
  create("a", 100);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  EXPECT_EQ(counted(counter::rpcs), 1u);
  EXPECT_EQ(open("a"), fd);
  EXPECT_EQ(open("a", O_CLOEXEC), fd);
  EXPECT_EQ(counted(counter::rpcs), 1u);
  EXPECT_EQ(counted(counter::opens), 1u);
  EXPECT_EQ(counted(counter::reopens), 2u);

  // Open until it was closed as often as it was opened; only then the host is told.
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(counted(counter::rpcs), 1u);
  EXPECT_EQ(calls().status(fd).result, 0);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(counted(counter::rpcs), 2u);
  EXPECT_EQ(counted(counter::closes), 1u);
  EXPECT_EQ(calls().status(fd).result, -EBADF);
}

TEST_P(open_test, names_every_open_file_in_the_statistics_of_files) {
  create("a", 100);
  create("b", 5000);
  const std::int32_t a = open("a");
  ASSERT_GE(a, 0);
  ASSERT_EQ(open("a"), a);
  ASSERT_GE(open("b"), 0);
  std::set<std::string> seen;
  for (const file_statistics& f : fs().file_stats()) {
    seen.insert(f.path);
    EXPECT_EQ(f.size, f.path == files->path("a") ? 100u : 5000u);
    EXPECT_EQ(f.holders, f.path == files->path("a") ? 2u : 1u);
  }
  EXPECT_EQ(seen, (std::set<std::string>{files->path("a"), files->path("b")}));
}

TEST_P(open_test, statistics_of_files_count_hits_and_loads_since_the_open) {
  options.cache_bytes = 256 * options.page_bytes;
  options.extent_budget_bytes = 0;
  const std::string content = create("a", 300'000);  // too large to come with its open
  create("b", 300'000);
  const std::uint64_t pages = (content.size() + options.page_bytes - 1) / options.page_bytes;
  const std::int32_t fd = open("a");
  ASSERT_GE(open("b"), 0);
  const auto of_a = [&] {
    for (const file_statistics& f : fs().file_stats()) {
      if (f.path == files->path("a")) return f;
      EXPECT_EQ(f.hits + f.page_loads + f.direct_loads + f.loaded_bytes, 0u) << "nobody read it";
    }
    return file_statistics{};
  };
  EXPECT_EQ(of_a().page_loads, 0u);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(of_a().page_loads, pages);
  EXPECT_EQ(of_a().loaded_bytes, content.size());
  EXPECT_EQ(of_a().hits, 0u);
  EXPECT_EQ(of_a().direct_loads, 0u);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(of_a().page_loads, pages);
  EXPECT_EQ(of_a().hits, pages);
  EXPECT_EQ(calls().close(fd), 0);
  ASSERT_GE(open("a"), 0);
  EXPECT_EQ(of_a().page_loads, 0u) << "counted from the open on";
  EXPECT_EQ(of_a().hits, 0u);
}

TEST_P(open_test, different_paths_have_different_descriptors) {
  create("a", 100);
  files->make_link("link", "a");
  const std::int32_t a = open("a");
  const std::int32_t link = open("link");
  ASSERT_GE(a, 0);
  ASSERT_GE(link, 0);
  EXPECT_NE(a, link);
  EXPECT_EQ(calls().status(a).status.inode, calls().status(link).status.inode);
}

TEST_P(open_test, a_closed_descriptor_is_bad) {
  const std::string content = create("a", 100);
  options.open_files = 1;  // so that the next open gets the same record
  const std::int32_t old = open("a");
  ASSERT_GE(old, 0);
  ASSERT_EQ(calls().close(old), 0);
  EXPECT_EQ(calls().close(old), -EBADF);

  const std::int32_t now = open("a");
  ASSERT_GE(now, 0);
  EXPECT_NE(now, old);
  EXPECT_EQ(calls().close(old), -EBADF);
  EXPECT_EQ(calls().read(old, 0, 10).result, -EBADF);
  EXPECT_EQ(calls().map(old, 0, 10).result, -EBADF);
  EXPECT_EQ(calls().status(old).result, -EBADF);
  const view_answer view = calls().view(old, 0, 1);
  EXPECT_EQ(view.error, -EBADF);
  EXPECT_EQ(view.size, 0u);
  EXPECT_EQ(view.words.front(), 0u);
  calls().expect_read(now, content, 0, 100);
}

TEST_P(open_test, numbers_that_are_no_descriptors_are_bad) {
  create("a", 100);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  for (const std::int32_t bad :
       {-1, -EBADF, std::int32_t{0x7fffffff}, std::int32_t{-0x7fffffff - 1}, fd + 1, fd ^ (1 << 17),
        fd ^ (1 << 30)}) {
    EXPECT_EQ(calls().read(bad, 0, 10).result, -EBADF) << bad;
    EXPECT_EQ(calls().map(bad, 0, 10).result, -EBADF) << bad;
    EXPECT_EQ(calls().status(bad).result, -EBADF) << bad;
    EXPECT_EQ(calls().close(bad), -EBADF) << bad;
    EXPECT_EQ(calls().view(bad, 0, 1).error, -EBADF) << bad;
  }
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(open_test, gives_the_errors_of_open) {
  create("a", 100);
  files->make_directory("folder");
  files->make_fifo("fifo");
  files->make_link("link", "a");
  files->make_link("dangling", "nothing");
  EXPECT_EQ(open("nothing"), -ENOENT);
  EXPECT_EQ(calls().open(""), -ENOENT);
  EXPECT_EQ(open("dangling"), -ENOENT);
  EXPECT_EQ(open("folder"), -EISDIR);
  EXPECT_EQ(open("fifo"), -EINVAL);
  EXPECT_EQ(open("link", O_NOFOLLOW), -ELOOP);
  const std::int32_t followed = open("link");
  EXPECT_GE(followed, 0);
  EXPECT_EQ(open("link", O_NOFOLLOW), -ELOOP) << "also while it is open by following it";
  EXPECT_EQ(calls().close(followed), 0);
  EXPECT_EQ(calls().open_null_path(), -EFAULT);
  wait_until([&] { return fs().stats().host_open_files == 0; });  // the close is not waited for
  EXPECT_EQ(fs().stats().host_open_files, 0u);
  EXPECT_EQ(counted(counter::opens), 1u);

  // No failure is remembered.
  const std::string content = create("nothing", 50);
  const std::int32_t fd = open("nothing");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 0, 50);
}

TEST_P(open_test, gives_what_the_backend_refuses_with) {
  create("a", 100);
  for (const int refusal : {EACCES, EPERM, EIO, ENOMEM, EMFILE}) {
    fail(operation::open, refusal);
    EXPECT_EQ(open("a"), -refusal);
    io->clear();
  }
  fail(operation::open, ENFILE);
  EXPECT_EQ(open("a"), -EMFILE);
  io->clear();
  fail(operation::identify, EIO);
  EXPECT_EQ(open("a"), -EIO);
  io->clear();
  EXPECT_GE(open("a"), 0);
  EXPECT_EQ(fs().stats().host_open_files, 1u);
}

TEST_P(open_test, a_mount_that_is_read_only_changes_nothing) {
  options.read_only = true;
  create("a", 100);
  for (const int flags :
       {O_WRONLY, O_RDWR, O_ACCMODE, O_CREAT, O_TRUNC, O_APPEND, O_RDWR | O_CREAT | O_TRUNC}) {
    EXPECT_EQ(open("a", flags), -EROFS) << flags;
    EXPECT_EQ(open("new", flags), -EROFS) << flags;
  }
  EXPECT_EQ(calls().unlink(files->path("a")), -EROFS);
  EXPECT_EQ(calls().rename(files->path("a"), files->path("b")), -EROFS);
  EXPECT_EQ(open("new"), -ENOENT);
  EXPECT_EQ(calls().read(open("a"), 0, 200).result, 100);
}

TEST_P(open_test, unknown_flags_are_refused) {
  create("a", 100);
  for (const int flags :
       {O_DIRECTORY, O_NONBLOCK, O_SYNC, 1 << 30, -1 & ~(O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND),
        O_ACCMODE, O_TRUNC, O_APPEND, O_RDWR | O_GWRONCE, int{O_GWRONCE}}) {
    EXPECT_EQ(open("a", flags), -EINVAL) << flags;
  }
  EXPECT_EQ(counted(counter::rpcs), 0u);
}

TEST_P(open_test, paths_may_be_as_long_as_the_host_allows) {
  const std::string content = create("a", 100);
  for (const std::size_t length : {std::size_t{1000}, std::size_t{4094}, std::size_t{4095}}) {
    const std::int32_t fd = calls().open(files->path_of_length("a", length));
    ASSERT_GE(fd, 0) << length;
    calls().expect_read(fd, content, 0, 100);
  }
  const std::uint64_t requests = counted(counter::rpcs);
  for (const std::size_t length : {std::size_t{4096}, std::size_t{4097}, std::size_t{10000}}) {
    EXPECT_EQ(calls().open(files->path_of_length("a", length)), -ENAMETOOLONG) << length;
  }
  EXPECT_EQ(counted(counter::rpcs), requests);
}

TEST_P(open_test, paths_that_differ_in_one_byte_are_different_files) {
  // Lengths around the words of the hash.
  for (std::size_t length = 1; length <= 20; ++length) {
    std::string first(length, 'x');
    std::string second = first;
    second.back() = 'y';
    files->write(first, "1" + first);
    files->write(second, "2" + first);
    const std::int32_t one = open(first);
    const std::int32_t two = open(second);
    ASSERT_GE(one, 0);
    ASSERT_GE(two, 0);
    EXPECT_EQ(calls().read(one, 0, 1).bytes, "1") << length;
    EXPECT_EQ(calls().read(two, 0, 1).bytes, "2") << length;
  }
}

TEST_P(open_test, the_table_of_open_files_has_an_end) {
  options.open_files = 4;
  for (const char* name : {"a", "b", "c", "d", "e"}) create(name, 10);
  std::vector<std::int32_t> fds;
  for (const char* name : {"a", "b", "c", "d"}) fds.push_back(open(name));
  for (const std::int32_t fd : fds) ASSERT_GE(fd, 0);
  EXPECT_EQ(open("e"), -EMFILE);
  EXPECT_EQ(open("nothing"), -EMFILE);
  EXPECT_EQ(open("c"), fds[2]) << "an open file needs no further record";
  EXPECT_EQ(calls().close(fds[2]), 0);
  EXPECT_EQ(open("e"), -EMFILE);
  EXPECT_EQ(calls().close(fds[2]), 0);
  EXPECT_GE(open("e"), 0);
  EXPECT_EQ(open("c"), -EMFILE);
}

TEST_P(open_test, a_failed_open_leaves_its_record_free) {
  options.open_files = 1;
  create("a", 10);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(open("nothing"), -ENOENT);
  EXPECT_GE(open("a"), 0);
}

TEST_P(open_test, tells_what_stat_tells) {
  create("a", 12345);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  std::unique_ptr<backend_file> file;
  ASSERT_EQ(files->io()->open(files->path("a"), false, file), 0);
  file_identity expected;
  ASSERT_EQ(file->identify(expected), 0);
  const status_answer answer = calls().status(fd);
  ASSERT_EQ(answer.result, 0);
  EXPECT_EQ(answer.status.size, 12345u);
  EXPECT_EQ(answer.status.modified_ns, expected.modified_ns);
  EXPECT_EQ(answer.status.changed_ns, expected.changed_ns);
  EXPECT_EQ(answer.status.inode, expected.inode);
  EXPECT_EQ(answer.status.device, expected.device);
  EXPECT_EQ(answer.status.mode, expected.mode);
  if (GetParam().where != source::posix) return;

  struct stat s;
  ASSERT_EQ(stat(files->path("a").c_str(), &s), 0);
  EXPECT_EQ(answer.status.size, static_cast<std::uint64_t>(s.st_size));
  EXPECT_EQ(answer.status.modified_ns, s.st_mtim.tv_sec * 1'000'000'000 + s.st_mtim.tv_nsec);
  EXPECT_EQ(answer.status.changed_ns, s.st_ctim.tv_sec * 1'000'000'000 + s.st_ctim.tv_nsec);
  EXPECT_EQ(answer.status.inode, s.st_ino);
  EXPECT_EQ(answer.status.device, s.st_dev);
  EXPECT_EQ(answer.status.mode, s.st_mode);
}

TEST_P(open_test, status_describes_the_file_as_it_was_opened) {
  create("a", 1000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  const file_status before = calls().status(fd).status;
  create("a", 2000, 1);
  ASSERT_EQ(open("a"), fd);
  const file_status after = calls().status(fd).status;
  EXPECT_EQ(after.size, 1000u);
  EXPECT_EQ(after.modified_ns, before.modified_ns);
}

// What only folders have.
class host_file_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, host_file_test,
                         ::testing::ValuesIn(settings({source::posix}, {4096})), name_of_setting);

TEST_P(host_file_test, gives_the_errors_of_names) {
  create("a", 100);
  EXPECT_EQ(open("a/b"), -ENOTDIR);
  EXPECT_EQ(open(std::string(300, 'n')), -ENAMETOOLONG);
  EXPECT_EQ(calls().open("/dev/null"), -EINVAL);
  EXPECT_EQ(calls().open("/"), -EISDIR);
}

TEST_P(host_file_test, relative_paths_begin_at_the_working_directory) {
  const std::string content = create("a", 100);
  const std::int32_t fd = calls().open(std::filesystem::relative(files->path("a")));
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 0, 100);
}

class large_file_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, large_file_test,
                         ::testing::ValuesIn(settings({source::memory}, {4096})), name_of_setting);

TEST_P(large_file_test, files_of_2_to_the_48_bytes_are_too_large) {
  create("a", 10);
  files->truncate("a", std::uint64_t{1} << 48);
  EXPECT_EQ(open("a"), -EOVERFLOW);
  EXPECT_EQ(fs().stats().host_open_files, 0u);
  files->truncate("a", (std::uint64_t{1} << 48) - 1);
  EXPECT_GE(open("a"), 0);
}

}  // namespace
}  // namespace gpufs::testing

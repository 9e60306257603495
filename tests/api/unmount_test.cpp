// The end of a mount: what was written and not closed is in the files then, or its loss is
// reported.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/matrix.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

class unmount_test : public conformance {
 protected:
  mount& begin() {
    fs_ = std::make_unique<mount>(options);
    session_ = std::make_unique<session>(*fs_, GetParam().kind);
    return *fs_;
  }
  session& calls() { return *session_; }
  std::int32_t open(const std::string& name, int flags) {
    return calls().open(files->path(name), flags);
  }
  std::int64_t write(std::int32_t fd, const std::string& bytes, std::uint64_t at) {
    return calls().write(fd, bytes, static_cast<std::int64_t>(at));
  }
  // What unmount() throws.
  std::optional<error> end() {
    session_.reset();
    try {
      fs_->unmount();
    } catch (const error& e) {
      return e;
    }
    return std::nullopt;
  }
  void expect_clean_end() {
    const std::optional<error> e = end();
    EXPECT_FALSE(e.has_value()) << e->what();
    EXPECT_TRUE(fs_->file_errors().errors.empty());
  }
  // Without unmount(). What it says on standard error.
  std::string destroy() {
    session_.reset();
    ::testing::internal::CaptureStderr();
    fs_.reset();
    return ::testing::internal::GetCapturedStderr();
  }
  void fail_on(const std::string& name, operation on, int error_number) {
    fault rule;
    rule.on = on;
    rule.path = files->path(name);
    rule.error_number = error_number;
    io->add(rule);
  }

  std::unique_ptr<mount> fs_;
  std::unique_ptr<session> session_;
};
INSTANTIATE_TEST_SUITE_P(conformance, unmount_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(unmount_test, what_was_not_closed_is_in_the_files) {
  for (const bool explicitly : {true, false}) {
    std::string content = create("a", 5 * page_bytes() + 100);
    begin();
    const std::int32_t fd = open("a", O_RDWR), added = open("a", O_WRONLY | O_APPEND),
                       fresh = open("new", O_WRONLY | O_CREAT);
    ASSERT_EQ(write(fd, "part", page_bytes() - 2), 4);
    content.replace(page_bytes() - 2, 4, "part");
    const std::string whole(page_bytes(), 'w');
    ASSERT_EQ(write(fd, whole, 3 * page_bytes()), static_cast<std::int64_t>(page_bytes()));
    content.replace(3 * page_bytes(), page_bytes(), whole);
    ASSERT_EQ(write(added, "appended", 0), 8);
    content += "appended";
    ASSERT_EQ(write(fresh, "far", 2 * page_bytes() + 7), 3);
    if (explicitly) expect_clean_end();
    else EXPECT_EQ(destroy(), "");
    expect_content("a", content);
    expect_content("new", std::string(2 * page_bytes() + 7, '\0') + "far");
    EXPECT_GE(io->calls(operation::sync), 2u) << "what is open is durable then";
    fs_.reset();
    files->remove("new");
  }
}

TEST_P(unmount_test, bytes_that_others_wrote_meanwhile_stay) {
  std::string content = create("a", 3 * page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(write(fd, "ours", 10), 4);
  ASSERT_EQ(write(fd, "ours", 2 * page_bytes() - 2), 4);
  files->write_at("a", 14, "theirs");
  files->write_at("a", 2 * page_bytes() + 2, "theirs");
  content.replace(10, 10, "ourstheirs");
  content.replace(2 * page_bytes() - 2, 10, "ourstheirs");
  expect_clean_end();
  expect_content("a", content);
}

TEST_P(unmount_test, what_was_cut_stays_cut) {
  const std::string content = create("a", 4 * page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(write(fd, std::string(3 * page_bytes(), 'x'), 0),
            static_cast<std::int64_t>(3 * page_bytes()));
  ASSERT_EQ(calls().truncate(fd, static_cast<std::int64_t>(page_bytes() + 5)), 0);
  expect_clean_end();
  expect_content("a", std::string(page_bytes() + 5, 'x'));
}

TEST_P(unmount_test, a_file_that_was_removed_does_not_come_back) {
  create("a", page_bytes());
  create("b", page_bytes());
  begin();
  ASSERT_EQ(write(open("a", O_RDWR), "gone", 0), 4);
  ASSERT_EQ(write(open("b", O_RDWR), "kept", 0), 4);
  ASSERT_EQ(calls().unlink(files->path("a")), 0);
  ASSERT_EQ(calls().rename(files->path("b"), files->path("c")), 0);
  expect_clean_end();
  EXPECT_FALSE(files->exists("a"));
  EXPECT_FALSE(files->exists("b"));
  EXPECT_EQ(files->content("c").substr(0, 4), "kept");
}

// Stores that no gmsync or gmunmap told of are dropped.
TEST_P(unmount_test, a_mapping_that_was_not_synced_is_dropped) {
  const std::string content = create("a", page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDWR);
  const map_answer m = calls().map_write(fd, 0, 100);
  ASSERT_EQ(m.result, 100);
  ASSERT_EQ(calls().poke(m.pointer, "stored"), 6);
  expect_clean_end();
  expect_content("a", content);
}

TEST_P(unmount_test, random_writes_that_nobody_closes_are_all_in_the_files) {
  for (const std::uint64_t seed : first_seeds(is_sanitized ? 2 : 4)) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                       "GPUFS_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    options.cache_bytes = (8 + below(60)) * page_bytes();
    options.rings = below(2) == 0 ? 1 : 0;
    begin();
    struct written {
      std::string name, content;
      std::vector<std::int32_t> fds;
    };
    std::vector<written> all;
    for (int i = 0; i < 3; ++i) {
      written& w = all.emplace_back();
      w.name = "file-" + std::to_string(i);
      w.content = create(w.name, below(6 * page_bytes()));
      w.fds.push_back(open(w.name, O_RDWR));
      if (below(2) == 0) w.fds.push_back(open(w.name, O_WRONLY));
    }
    // Each byte once, so none is fetched.
    written once{"once", std::string(4 * page_bytes(), '\0'), {}};
    once.fds.push_back(open("once", O_WRONLY | O_CREAT | O_GWRONCE));
    for (int i = 0; i < 60; ++i) {
      written& w = all[below(all.size())];
      const std::int32_t fd = w.fds[below(w.fds.size())];
      const std::uint64_t at = below(w.content.size() + 2 * page_bytes());
      const std::string bytes =
          self_checking(9, static_cast<unsigned>(i), at, 1 + below(3 * page_bytes()));
      const std::uint64_t kind = below(12);
      if (kind == 0) {
        ASSERT_EQ(calls().truncate(fd, static_cast<std::int64_t>(at)), 0);
        w.content.resize(at, '\0');
      } else if (kind == 1) {
        ASSERT_EQ(calls().sync(fd), 0);
      } else {
        ASSERT_EQ(write(fd, bytes, at), static_cast<std::int64_t>(bytes.size()));
        if (w.content.size() < at + bytes.size()) w.content.resize(at + bytes.size(), '\0');
        w.content.replace(at, bytes.size(), bytes);
      }
    }
    for (std::uint64_t at = below(50); at < once.content.size();) {
      const std::uint64_t n =
          std::min<std::uint64_t>(1 + below(page_bytes()), once.content.size() - at);
      const std::string bytes = self_checking(3, 1, at, n);
      ASSERT_EQ(write(once.fds[0], bytes, at), static_cast<std::int64_t>(n));
      once.content.replace(at, n, bytes);
      at += n + below(100);
    }
    const std::size_t length = once.content.find_last_not_of('\0') + 1;
    expect_clean_end();
    for (const written& w : all) expect_content(w.name, w.content);
    EXPECT_EQ(files->content("once").substr(0, length), once.content.substr(0, length));
    fs_.reset();
    files->remove("once");
  }
}

TEST_P(unmount_test, a_write_that_fails_is_reported_with_its_path_and_the_others_are_written) {
  const std::string before = create("bad", 2 * page_bytes());
  std::string good = create("good", 2 * page_bytes());
  begin();
  ASSERT_EQ(write(open("bad", O_RDWR), "lost", 3), 4);
  ASSERT_EQ(write(open("good", O_RDWR), "kept", 3), 4);
  good.replace(3, 4, "kept");
  fail_on("bad", operation::write, ENOSPC);
  const std::optional<error> e = end();
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->code().value(), ENOSPC);
  EXPECT_EQ(e->path(), files->path("bad"));
  EXPECT_NE(std::string(e->what()).find("write-back"), std::string::npos) << e->what();
  const file_error_list list = fs_->file_errors();
  ASSERT_EQ(list.errors.size(), 1u);
  EXPECT_EQ(list.dropped, 0u);
  EXPECT_EQ(list.errors[0].path, files->path("bad"));
  EXPECT_EQ(list.errors[0].error_number, ENOSPC);
  EXPECT_EQ(list.errors[0].what, file_operation::write_back);
  EXPECT_TRUE(list.errors[0].at_unmount);
  EXPECT_FALSE(end().has_value()) << "it was told";
  expect_content("bad", before);
  expect_content("good", good);
  EXPECT_EQ(destroy(), "") << "it was told";
}

TEST_P(unmount_test, a_destructor_says_what_is_lost_a_line_for_each_file) {
  create("a", 9 * page_bytes());
  create("b", page_bytes());
  begin();
  const std::int32_t a = open("a", O_RDWR);
  for (std::uint64_t page = 0; page < 9; page += 2)
    ASSERT_EQ(write(a, "lost", page * page_bytes()), 4);
  ASSERT_EQ(write(open("b", O_RDWR), "unsure", 0), 6);
  fail_on("a", operation::write, EDQUOT);
  fail_on("b", operation::sync, EIO);
  const std::string said = destroy();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_NE(said.find(files->path("a") + ": write-back: Disk quota exceeded"), std::string::npos)
      << said;
  EXPECT_NE(said.find(files->path("b") + ": sync: Input/output error"), std::string::npos) << said;
}

TEST_P(unmount_test, a_backend_that_throws_is_an_error_of_its_file) {
  create("a", page_bytes());
  begin();
  ASSERT_EQ(write(open("a", O_RDWR), "lost", 0), 4);
  fault thrown;
  thrown.on = operation::write;
  thrown.exception = true;
  io->add(thrown);
  const std::optional<error> e = end();
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->code().value(), EIO);
  EXPECT_EQ(e->path(), files->path("a"));
}

// The last worker dies with the write; what it did not write is still there.
TEST_P(unmount_test, what_a_dead_service_did_not_write_is_written) {
  options.workers = 1;
  std::string content = create("a", 2 * page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(write(fd, "some", 7), 4);
  fault death;
  death.on = operation::write;
  death.worker_death = true;
  io->add(death);
  EXPECT_EQ(calls().sync(fd), -EIO);
  io->clear();
  EXPECT_FALSE(end().has_value());
  expect_content("a", content.replace(7, 4, "some"));
}

TEST_P(unmount_test, what_a_dead_service_did_not_write_is_written_after_its_close) {
  options.workers = 1;
  std::string content = create("a", 2 * page_bytes());
  const std::string other = create("b", 2 * page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDWR), same = open("a", O_WRONLY), read = open("b", O_RDONLY);
  ASSERT_EQ(write(fd, "some", 7), 4);
  fault death;
  death.on = operation::write;
  death.worker_death = true;
  io->add(death);
  EXPECT_EQ(calls().close(same), -EIO);
  EXPECT_EQ(calls().sync(fd), -EIO);
  io->clear();
  ASSERT_EQ(write(fd, "more", 11), 4);
  EXPECT_EQ(calls().close(fd), -EIO);
  EXPECT_EQ(calls().close(read), 0);
  EXPECT_FALSE(end().has_value());
  expect_content("a", content.replace(7, 8, "somemore"));
  expect_content("b", other);
}

TEST_P(unmount_test, a_sync_that_a_dead_service_did_not_begin_loses_nothing) {
  options.workers = 1;
  std::string content = create("a", 2 * page_bytes());
  create("b", 64 * page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDWR), other = open("b", O_RDONLY);
  ASSERT_EQ(write(fd, "some", 7), 4);
  EXPECT_EQ(calls().sync(fd), 0);
  fault death;
  death.on = operation::read;
  death.worker_death = true;
  io->add(death);
  EXPECT_EQ(calls().read(other, static_cast<std::int64_t>(50 * page_bytes()), 1).result, -EIO);
  io->clear();
  EXPECT_EQ(calls().sync(fd), -EIO);
  EXPECT_FALSE(end().has_value());
  EXPECT_TRUE(fs_->file_errors().errors.empty());
  expect_content("a", content.replace(7, 4, "some"));
}

TEST_P(unmount_test, a_mount_that_reads_only_ends_without_a_call_of_the_backend) {
  options.read_only = true;
  const std::string content = create("a", 2 * page_bytes());
  begin();
  const std::int32_t fd = open("a", O_RDONLY);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(open("a", O_RDWR), -EROFS);
  expect_clean_end();
  EXPECT_EQ(io->calls(operation::write) + io->calls(operation::sync), 0u);
  expect_content("a", content);
}

TEST_P(unmount_test, a_mount_that_has_ended_says_so) {
  const std::string content = create("a", 2 * page_bytes());
  mount& fs = begin();
  calls().expect_read(open("a", O_RDONLY), content, 0, content.size());
  expect_clean_end();
  const auto expect_ended = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "it went on";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), ESHUTDOWN);
    }
  };
  expect_ended([&] { (void)fs.ref(); });
  expect_ended([&] { (void)fs.device_ref(); });
  expect_ended([&] { (void)fs.register_file(files->path("a")); });
  expect_ended([&] { (void)fs.open_sink([](const char*, std::size_t) { return 0; }); });
  expect_ended([&] {
    session later(fs, GetParam().kind);
    (void)later.open(files->path("a"));
  });
  EXPECT_FALSE(end().has_value());
  EXPECT_GE(fs.stats()[counter::read_bytes], content.size());
  EXPECT_TRUE(fs.file_stats().empty());
  char byte = 1;
  void* const memory = fs.allocate(1);
  fs.copy_to_host(&byte, memory, 1);
  EXPECT_EQ(byte, 0);
  fs.free(memory);
}

}  // namespace
}  // namespace gpufs::testing

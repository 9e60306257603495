// The end of a mount: what was written and not closed is in the files then, or its loss is
// reported; whatever kernels left in the arena.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <random>

#include "api/matrix.hpp"
#include "service/file_error_log.hpp"
#include "support/memory_backend.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

std::vector<std::uint64_t> first_seeds(std::size_t most) {
  std::vector<std::uint64_t> all = seeds();
  if (all.size() > most) all.resize(most);
  return all;
}

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

fault hanging_write(const std::string& path, const std::shared_ptr<std::atomic<bool>>& go_on,
                    const std::shared_ptr<std::atomic<bool>>& has_ended) {
  fault hang;
  hang.on = operation::write;
  hang.path = path;
  hang.before = [go_on, has_ended] {
    wait_until([&] { return go_on->load(); }, std::chrono::minutes(10));
    *has_ended = true;
  };
  return hang;
}

// A worker hangs in a write, which may land on top of what is newer whenever it comes back: nothing
// more is written to that file. The others are written.
TEST(unmount_of_a_hanging_service, writes_all_files_but_those_that_lack_an_answer) {
  const auto files = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(files);
  files->write("/a", std::string(5000, '-'));
  files->write("/b", std::string(5000, '-'));
  const auto go_on = std::make_shared<std::atomic<bool>>(false),
             has_ended = std::make_shared<std::atomic<bool>>(false);
  io->add(hanging_write("/a", go_on, has_ended));
  mount_options options = base_options();
  options.backend = io;
  options.request_timeout = std::chrono::seconds(5);
  options.unmount_timeout = std::chrono::milliseconds(500);
  auto fs = std::make_unique<mount>(options);
  {
    session calls(*fs, group_kind::thread);
    const std::int32_t a = calls.open("/a", O_RDWR), b = calls.open("/b", O_RDWR);
    ASSERT_EQ(calls.write(a, "first", 0), 5);
    ASSERT_EQ(calls.write(b, "kept", 0), 4);
    EXPECT_EQ(calls.sync(a), -EIO) << "no answer";
    ASSERT_EQ(calls.write(a, "newer", 0), 5);
  }
  try {
    fs->unmount();
    ADD_FAILURE() << "what /a has is not known";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EIO);
    EXPECT_EQ(e.path(), "/a");
  }
  EXPECT_EQ(files->content("/a"), std::string(5000, '-'));
  EXPECT_EQ(files->content("/b"), "kept" + std::string(4996, '-'));
  ::testing::internal::CaptureStderr();
  fs.reset();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("hangs in I/O"), std::string::npos);
  *go_on = true;
  wait_until([&] { return has_ended->load(); });
}

// A call of the backend that does not return is given up; what it writes is reported, and all else
// ends.
TEST(unmount_of_a_hanging_backend, gives_up_and_reports) {
  const auto files = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(files);
  files->write("/a", std::string(5000, '-'));
  mount_options options = base_options();
  options.backend = io;
  options.request_timeout = std::chrono::seconds(5);
  auto fs = std::make_unique<mount>(options);
  {
    session calls(*fs, group_kind::thread);
    ASSERT_EQ(calls.write(calls.open("/a", O_RDWR), "lost", 0), 4);
  }
  const auto go_on = std::make_shared<std::atomic<bool>>(false),
             has_ended = std::make_shared<std::atomic<bool>>(false);
  io->add(hanging_write("/a", go_on, has_ended));
  try {
    fs->unmount();
    ADD_FAILURE() << "it did not wait for the write";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), ETIMEDOUT);
    EXPECT_EQ(e.path(), "/a");
  }
  ::testing::internal::CaptureStderr();
  fs.reset();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("hangs in I/O"), std::string::npos);
  *go_on = true;
  wait_until([&] { return has_ended->load(); });
}

// A kernel chooses the names of files, and a terminal obeys what it is shown.
TEST(unmount_message, has_no_control_characters) {
  const auto files = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(files);
  const std::string name = "/a\n\x1b]0;title\a\\ \x7f\xc2\x9b\xc3\xa9";
  files->write(name, "");
  mount_options options = base_options();
  options.backend = io;
  auto fs = std::make_unique<mount>(options);
  {
    session calls(*fs, group_kind::thread);
    ASSERT_EQ(calls.write(calls.open(name, O_RDWR), "lost", 0), 4);
  }
  fault rule;
  rule.on = operation::write;
  rule.error_number = EIO;
  io->add(rule);
  ::testing::internal::CaptureStderr();
  fs.reset();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "gpufs: unmount: /a\\x0a\\x1b]0;title\\x07\\x5c \\x7f\\xc2\x9b\xc3\xa9: write-back: "
            "Input/output error\n");
}

// The kernel would end the program with SIGXFSZ.
TEST(unmount_limit_test, a_limit_of_file_size_is_an_error) {
  const temporary_folder folder;
  mount fs(base_options());
  rlimit limit{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 10000;
  {
    session calls(fs, group_kind::thread);
    const std::int32_t fd = calls.open(folder / "new", O_RDWR | O_CREAT);
    ASSERT_EQ(calls.write(fd, std::string(20000, 'x'), 0), 20000);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::optional<error> failure;
  try {
    fs.unmount();
  } catch (const error& e) {
    failure = e;
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code().value(), EFBIG);
  EXPECT_EQ(failure->path(), folder / "new");
  EXPECT_EQ(std::filesystem::file_size(folder / "new"), 10000u);
}

// ---- whatever a kernel left in the arena

class hostile_unmount : public conformance {
 protected:
  template <class T>
  void put(mount& fs, std::uint64_t offset, const T& value) {
    fs.copy_to_device(fs.ref().arena + offset, &value, sizeof value);
  }
};
INSTANTIATE_TEST_SUITE_P(conformance, hostile_unmount,
                         ::testing::ValuesIn(settings({source::memory}, {512, 4096})),
                         name_of_setting);

TEST_P(hostile_unmount, no_word_of_the_arena_leads_out_of_it_or_to_another_file) {
  options.cache_bytes = 32 * page_bytes();
  options.open_files = 16;
  for (const std::uint64_t seed : first_seeds(is_sanitized ? 12 : 48)) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                       "GPUFS_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::string read_only = create("read", 3 * page_bytes()),
                      closed = create("closed", 3 * page_bytes(), 1);
    create("written", 3 * page_bytes(), 2);
    auto fs = std::make_unique<mount>(options);
    {
      session calls(*fs, GetParam().kind);
      const std::int32_t reads = calls.open(files->path("read"));
      calls.expect_read(reads, read_only, 0, read_only.size());
      const std::int32_t closes = calls.open(files->path("closed"), O_RDWR);
      calls.expect_read(closes, closed, 0, closed.size());
      ASSERT_EQ(calls.close(closes), 0);
      const std::int32_t fd = calls.open(files->path("written"), O_RDWR);
      for (std::uint64_t page = 0; page < 3; ++page)
        ASSERT_EQ(calls.write(fd, "dirty", static_cast<std::int64_t>(page * page_bytes() + page)),
                  5);
    }
    const arena_layout l = fs->ref().layout;
    const std::uint64_t metadata_words = l.pages / 8;
    // Random words anywhere, the values that mean something more often than others.
    const auto word = [&]() -> std::uint64_t {
      switch (random() % 6) {
        case 0: return random() % 8;
        case 1: return ~std::uint64_t{0} - random() % 8;
        case 2: return random() % 4 << 61 | random() % 8;
        case 3: return std::uint64_t{slot_state::unpinned(slot_phase::resident)} | random() << 32;
        case 4: return std::uint64_t{1} << random() % 64;
        default: return random();
      }
    };
    for (std::uint64_t i = random() % 300; i != 0; --i)
      put(*fs, random() % metadata_words * 8, word());
    // Frames that claim to be dirty pages of some version.
    for (std::uint32_t f = 0; f < l.frame_count; ++f) {
      if (random() % 2 != 0) continue;
      const std::uint64_t at = l.frames + f * sizeof(frame);
      put(*fs, at, slot_state::unpinned(slot_phase::resident) + 1);
      put(*fs, at + 8, random() % 6 | (random() % 3 == 0 ? detail::once_bit : 0));
      put(*fs, at + 16, random() % 3 == 0 ? word() : random() % 4);
      put(*fs, l.dirt + f * sizeof(frame_dirt),
          static_cast<std::uint32_t>(random() % 3 == 0 ? random() : 1 | random() % 64));
      put(*fs, l.dirt + f * sizeof(frame_dirt) + 4, static_cast<std::uint32_t>(word()));
    }
    for (std::uint32_t n = 0; n < 3; ++n) {
      if (random() % 2 == 0) put(*fs, l.nodes + n * sizeof(inode_state) + 8, word());
      if (random() % 4 == 0) put(*fs, l.nodes + n * sizeof(inode_state), word());
    }
    try {
      fs->unmount();
    } catch (const error& e) {
      EXPECT_EQ(e.path(), files->path("written")) << e.what();
    }
    (void)fs->stats();
    EXPECT_TRUE(fs->file_stats().empty());
    fs.reset();
    expect_content("read", read_only);
    expect_content("closed", closed);
  }
}

TEST(unmount, reports_a_loss_also_where_the_list_of_errors_is_full) {
  const auto memory = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(memory);
  mount_options options = base_options();
  options.backend = io;
  mount fs(options);
  session calls(fs, group_kind::thread);
  for (const operation on : {operation::sync, operation::write}) {
    fault rule;
    rule.on = on;
    rule.path = on == operation::write ? "lost" : "";
    rule.error_number = EIO;
    io->add(rule);
  }
  for (std::size_t i = 0; i < file_error_log::errors_max; ++i) {
    const std::int32_t fd = calls.open(std::to_string(i), O_WRONLY | O_CREAT);
    EXPECT_EQ(calls.sync(fd), -EIO);
    EXPECT_EQ(calls.close(fd), -EIO);
  }
  EXPECT_EQ(calls.write(calls.open("lost", O_WRONLY | O_CREAT), "bytes", 0), 5);
  try {
    fs.unmount();
    ADD_FAILURE() << "bytes are lost";
  } catch (const error& e) {
    EXPECT_EQ(e.code().value(), EIO);
  }
  EXPECT_GE(fs.file_errors().dropped, 1u);
}

}  // namespace
}  // namespace gpufs::testing

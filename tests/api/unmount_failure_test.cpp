// The end of a mount whose calls hang, whose limits are reached, or whose arena a kernel has
// overwritten.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/matrix.hpp"
#include "service/file_error_log.hpp"
#include "support/durable_backend.hpp"
#include "support/memory_backend.hpp"
#include "support/seeds.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

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

// Another program was told of the loss before the second descriptor was opened.
TEST(unmount, reports_a_loss_that_only_one_descriptor_is_told_of) {
  for (const bool early_one_writes_only : {false, true}) {
    const auto io = std::make_shared<durable_backend>();
    io->create("/a", "old");
    mount_options options = base_options();
    options.backend = io;
    mount fs(options);
    session calls(fs, group_kind::thread);
    const auto open = [&](bool writes_only) {
      return calls.open("/a", writes_only ? O_WRONLY : O_RDWR);
    };
    const std::int32_t early = open(early_one_writes_only);
    ASSERT_EQ(calls.write(early, "new", 0), 3);
    std::unique_ptr<backend_file> of_another_program;
    ASSERT_EQ(io->open_to_change("/a", {}, of_another_program), 0);
    ASSERT_EQ(of_another_program->write("lost", 4, 3), 4);
    io->fail_next_sync();
    ASSERT_EQ(of_another_program->sync(), -EIO);
    ASSERT_GE(open(!early_one_writes_only), 0);
    try {
      fs.unmount();
      ADD_FAILURE() << "bytes are lost";
    } catch (const error& e) {
      EXPECT_EQ(e.code().value(), EIO);
      EXPECT_EQ(e.path(), "/a");
    }
  }
}

// The group writes through one descriptor and syncs through another, which was opened after another
// program was told of the loss.
TEST(syncs, are_of_all_that_was_written_through_the_mount) {
  const auto io = std::make_shared<durable_backend>();
  io->create("/a", std::string(100, '-'));
  mount_options options = base_options();
  options.backend = io;
  mount fs(options);
  session calls(fs, group_kind::thread);
  const std::int32_t early = calls.open("/a", O_RDWR);
  ASSERT_EQ(calls.write(early, "lost", 0), 4);
  ASSERT_EQ(calls.advise(early, 0, 0, POSIX_FADV_DONTNEED), 0);  // written, not synced
  ASSERT_EQ(io->content("/a").substr(0, 4), "lost");
  std::unique_ptr<backend_file> of_another_program;
  ASSERT_EQ(io->open_to_change("/a", {}, of_another_program), 0);
  io->fail_next_sync();
  ASSERT_EQ(of_another_program->sync(), -EIO);
  const std::int32_t late = calls.open("/a", O_WRONLY);
  EXPECT_EQ(calls.sync(late), -EIO);
  EXPECT_EQ(calls.close(late), -EIO);
  EXPECT_EQ(calls.close(early), -EIO);
  EXPECT_EQ(fs.file_errors().errors.size(), 1u);
}

// A worker is left for other files.
TEST(syncs, that_hang_hold_up_no_other_file) {
  const auto files = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(files);
  std::atomic<bool> go_on{false};
  fault hang;
  hang.on = operation::sync;
  hang.path = "/slow";
  hang.before = [&] { wait_until([&] { return go_on.load(); }, std::chrono::minutes(10)); };
  io->add(hang);
  mount_options options = base_options();
  options.backend = io;
  options.workers = 2;
  mount fs(options);
  session calls(fs, group_kind::thread);
  std::vector<std::thread> groups;
  for (int i = 0; i < 3; ++i) {
    groups.emplace_back([&] {
      session own(fs, group_kind::thread);
      const std::int32_t fd = own.open("/slow", O_RDWR | O_CREAT);
      EXPECT_EQ(own.write(fd, "bytes", 0), 5);
      EXPECT_EQ(own.sync(fd), 0);
      EXPECT_EQ(own.close(fd), 0);
    });
  }
  const std::int32_t fd = calls.open("/other", O_RDWR | O_CREAT);
  EXPECT_EQ(calls.write(fd, "kept", 0), 4);
  EXPECT_EQ(calls.close(fd), 0);
  EXPECT_EQ(files->content("/other"), "kept");
  go_on = true;
  for (std::thread& t : groups) t.join();
}

// A write of every second byte of a page takes a call for each. Its caller has given up.
TEST(unmount_of_a_slow_backend, ends_a_write_of_many_parts) {
  const auto files = std::make_shared<memory_backend>();
  const auto io = std::make_shared<fault_backend>(files);
  files->write("/a", std::string(4096, '-'));
  std::atomic<unsigned> writes{0};
  fault slow;
  slow.on = operation::write;
  slow.before = [&] {
    ++writes;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  io->add(slow);
  mount_options options = base_options();
  options.backend = io;
  options.page_bytes = 4096;
  options.unmount_timeout = std::chrono::milliseconds(300);
  std::string expected(4096, '-');
  auto fs = std::make_unique<mount>(options);
  {
    session calls(*fs, group_kind::thread);
    const std::int32_t fd = calls.open("/a", O_RDWR);
    for (int i = 0; i < 400; i += 2) {
      ASSERT_EQ(calls.write(fd, "x", i), 1);
      expected[static_cast<std::size_t>(i)] = 'x';
    }
    session hurried(*fs, group_kind::thread, std::chrono::milliseconds(100));
    EXPECT_EQ(hurried.sync(fd), -EIO);
  }
  EXPECT_NO_THROW(fs->unmount()) << "it writes the page itself";
  EXPECT_EQ(files->content("/a"), expected);
  const unsigned before = writes;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(writes, before);
}

// A close sends what groups with other descriptors have written, and the file system refuses it.
TEST(errors_of_close, are_told_to_groups_with_other_descriptors) {
  const auto io = std::make_shared<fault_backend>(std::make_shared<memory_backend>());
  mount_options options = base_options();
  options.backend = io;
  mount fs(options);
  session calls(fs, group_kind::thread);
  const std::int32_t one = calls.open("/a", O_RDWR | O_CREAT), two = calls.open("/a", O_WRONLY);
  ASSERT_EQ(calls.write(two, "refused", 0), 7);
  fault refusal;
  refusal.on = operation::close;
  refusal.error_number = EDQUOT;
  refusal.nth = 1;
  io->add(refusal);
  EXPECT_EQ(calls.close(one), -EDQUOT);
  EXPECT_EQ(calls.sync(two), -EDQUOT);
  EXPECT_EQ(calls.close(two), -EDQUOT);
  const std::int32_t next = calls.open("/a", O_WRONLY);
  EXPECT_EQ(calls.sync(next), 0) << "of a file that was closed in between";
  EXPECT_EQ(calls.close(next), 0);
  EXPECT_THROW(fs.unmount(), error);
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

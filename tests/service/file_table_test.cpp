// The service's open files: handles, kinds of files, and when a file gets a new version.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "gpufs/base/limits.hpp"
#include "service/file_table.hpp"
#include "support/memory_backend.hpp"
#include "support/schedule.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

// With a number in which one bit is wrong, or two.
template <class Call>
void for_each_flip(std::uint64_t number, const Call& call) {
  for (unsigned i = 0; i < 64; ++i) {
    for (unsigned j = i; j < 64; ++j)
      call(number ^ (std::uint64_t{1} << i | std::uint64_t{1} << j));
  }
}

class file_table_test : public ::testing::Test {
 protected:
  std::uint64_t open(const std::string& path) {
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;
    EXPECT_EQ(table_.open(path, false, handle, file), 0) << path;
    return handle;
  }
  int open_error(const std::string& path, bool no_follow = false) {
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;
    return table_.open(path, no_follow, handle, file);
  }
  // Opens, looks at the version, closes.
  std::uint64_t version(const std::string& path) {
    const std::uint64_t handle = open(path);
    const std::uint64_t number = table_.find(handle)->version().number;
    EXPECT_EQ(table_.close(handle), 0);
    return number;
  }
  std::string read(std::uint64_t handle, std::uint64_t bytes, std::uint64_t offset) {
    std::string to(bytes, '\0');
    std::shared_ptr<backend_file> reached;
    EXPECT_EQ(table_.reach(*table_.find(handle), reached), 0);
    const std::int64_t n = file_table::read(*reached, to.data(), bytes, offset);
    EXPECT_GE(n, 0);
    to.resize(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)));
    return to;
  }

  const std::shared_ptr<memory_backend> io_ = std::make_shared<memory_backend>();
  file_table table_{io_, 64};
};

// ---- handles

TEST_F(file_table_test, a_handle_leads_to_its_file_until_it_is_closed) {
  io_->write("/a", "content of a");
  io_->write("/b", "content of b");
  const std::uint64_t a = open("/a"), b = open("/b");
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  EXPECT_EQ(table_.find(a)->path(), "/a");
  EXPECT_EQ(read(b, 100, 11), "b");
  EXPECT_EQ(table_.open_count(), 2u);
  EXPECT_EQ(table_.close(a), 0);
  EXPECT_EQ(table_.find(a), nullptr);
  EXPECT_EQ(table_.close(a), -EBADF);
  EXPECT_EQ(read(b, 100, 0), "content of b");
  EXPECT_EQ(table_.open_count(), 1u);
}

TEST_F(file_table_test, an_old_handle_does_not_lead_to_the_next_file_in_its_place) {
  io_->write("/a", "a");
  std::set<std::uint64_t> handles;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t handle = open("/a");
    for (const std::uint64_t old : handles) ASSERT_EQ(table_.find(old), nullptr);
    ASSERT_TRUE(handles.insert(handle).second) << "handle " << handle << " given again";
    if (handles.size() > 10) handles.erase(handles.begin());
    ASSERT_EQ(table_.close(handle), 0);
  }
}

// A request may be late: its caller has given up, and closed the file. It must not reach another
// file then.
TEST_F(file_table_test, a_handle_does_not_come_again) {
  io_->write("/a", "a");
  io_->write("/b", "b");
  std::unordered_set<std::uint64_t> seen;
  const std::uint64_t held = open("/b");
  seen.insert(held);
  for (int i = 0; i < (is_sanitized ? 30'000 : 300'000); ++i) {
    const std::uint64_t handle = open(i % 3 == 0 ? "/b" : "/a");
    ASSERT_TRUE(seen.insert(handle).second) << "after " << i << " opens";
    ASSERT_EQ(table_.close(handle), 0);
  }
  const std::uint64_t last = open("/a");
  EXPECT_FALSE(seen.contains(last));
  seen.erase(held);
  for (const std::uint64_t late : seen) ASSERT_EQ(table_.close(late), -EBADF);
  EXPECT_EQ(read(last, 10, 0), "a");
  EXPECT_EQ(read(held, 10, 0), "b");
}

TEST_F(file_table_test, the_name_of_a_writer_does_not_come_again) {
  io_->write("/a", "a");
  file_table table(io_, 64, 1024);
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  for (int i = 0; i < (is_sanitized ? 30'000 : 300'000); ++i) {
    ASSERT_EQ(table.open_to_change("/a", {}, handle, file), 0);
    ASSERT_TRUE(seen.insert(node_name(file->node(), file->version().number)).second)
        << "after " << i << " opens";
    ASSERT_EQ(table.close(handle), 0);
  }
  ASSERT_EQ(table.open_to_change("/a", {}, handle, file), 0);
  for (const std::uint64_t late : seen) ASSERT_EQ(table.find_writer(late), nullptr);
  EXPECT_NE(table.find_writer(node_name(file->node(), file->version().number)), nullptr);
}

// The descriptor whose close was reported first is written through last: what is written through
// one after its report is reported to nobody.
TEST_F(file_table_test,
       a_file_whose_close_was_reported_is_written_through_only_if_there_is_no_other) {
  io_->write("/a", "a");
  file_table table(io_, 64, 1024);
  std::array<std::uint64_t, 4> handles{};
  std::array<std::shared_ptr<host_file>, 4> files;
  for (std::size_t i = 0; i < 3; ++i)
    ASSERT_EQ(table.open_to_change("/a", {}, handles[i], files[i]), 0);
  const std::uint64_t name = node_name(files[0]->node(), files[0]->version().number);
  file_table::lookups known;
  const auto writes_through = [&] {
    file_table::lookups::entry* found = nullptr;
    EXPECT_EQ(table.look_up_writer(name, known, found), 0);
    EXPECT_EQ(table.find_writer(name), found->file);
    return found->file;
  };
  const auto report_close = [&](std::size_t i) {
    table.note_close(*files[i]);
    bool is_added = false;
    EXPECT_EQ(table.ask(files[i]->writing(), {}, is_added), 0);
    EXPECT_TRUE(is_added);
  };
  EXPECT_EQ(writes_through(), files[2]);
  report_close(2);
  EXPECT_EQ(writes_through(), files[1]);
  ASSERT_EQ(table.open_to_change("/a", {}, handles[3], files[3]), 0);
  known.clear();  // what it remembers is as good
  EXPECT_EQ(writes_through(), files[3]);
  report_close(3);
  EXPECT_EQ(writes_through(), files[1]);
  report_close(0);
  EXPECT_EQ(writes_through(), files[1]);
  ASSERT_EQ(table.close(handles[1]), 0);
  EXPECT_EQ(writes_through(), files[2])
      << "all are reported; this one has been opened again, if any";
  report_close(2);
  EXPECT_EQ(writes_through(), files[3]);
  for (const std::size_t i : {3u, 0u}) ASSERT_EQ(table.close(handles[i]), 0);
  EXPECT_EQ(writes_through(), files[2]);
  ASSERT_EQ(table.close(handles[2]), 0);
  EXPECT_EQ(table.find_writer(name), nullptr);
}

// So that what a faulty kernel takes for a handle finds nothing.
TEST_F(file_table_test, mounts_do_not_give_the_same_handles) {
  io_->write("/a", "a");
  std::unordered_set<std::uint64_t> handles, versions;
  for (int i = 0; i < 20; ++i) {
    file_table table(io_, 64, 64);
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;
    ASSERT_EQ(table.open_to_change("/a", {}, handle, file), 0);
    EXPECT_TRUE(handles.insert(handle).second);
    EXPECT_TRUE(versions.insert(file->version().number).second);
    for (std::uint64_t small = 0; small < 100'000; ++small) ASSERT_EQ(table.find(small), nullptr);
  }
}

// As long as a mount may live: a place's generations end, and go on after the largest number before
// that.
TEST_F(file_table_test, a_place_whose_generations_are_used_up_is_not_used_again) {
  io_->write("/a", "a");
  constexpr std::uint64_t largest = (std::uint64_t{1} << 46) - 1;
  constexpr std::uint64_t place_mask = (std::uint64_t{1} << 18) - 1;
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, largest - 1, largest}) {
    file_table table(io_, 64, 0, {.first_generation = first, .generations = 3});
    std::unordered_set<std::uint64_t> seen;
    std::map<std::uint64_t, int> uses;  // of each place
    for (int i = 0; i < 3000; ++i) {
      std::uint64_t handle = 0;
      std::shared_ptr<host_file> file;
      ASSERT_EQ(table.open("/a", false, handle, file), 0);
      ASSERT_TRUE(seen.insert(handle).second) << "after " << i << " opens";
      ASSERT_LE(++uses[handle & place_mask], 3);
      ASSERT_EQ(table.open_count(), 1u);
      ASSERT_EQ(table.close(handle), 0);
    }
    EXPECT_EQ(uses.size(), 1000u);
    EXPECT_EQ(table.open_count(), 0u);
    for (const std::uint64_t late : seen) ASSERT_EQ(table.find(late), nullptr);
  }
}

TEST_F(file_table_test, opens_end_where_handles_do) {
  io_->write("/a", "a");
  file_table table(io_, 64, 0, {.generations = 1});
  std::uint64_t handle = 0, count = 0;
  std::shared_ptr<host_file> file;
  int status = 0;
  while ((status = table.open("/a", false, handle, file)) == 0 &&
         count < 2 * limits::open_files_max) {
    ASSERT_EQ(table.close(handle), 0);
    ++count;
  }
  EXPECT_EQ(status, -EMFILE);
  EXPECT_EQ(count, 2 * limits::open_files_max - 1);
  EXPECT_EQ(table.open_count(), 0u);
}

TEST_F(file_table_test, opens_end_where_version_numbers_do) {
  io_->set_age_ns(0);  // each open gets a version
  io_->write("/a", "a");
  file_table table(io_, 64, 8, {.first_version = versions_end - 3});
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  std::uint64_t name = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(table.open_to_change("/a", {}, handle, file), 0);
    EXPECT_EQ(node_of(node_name(file->node(), file->version().number)), file->node());
    name = node_name(file->node(), file->version().number);
    EXPECT_EQ(table.find_writer(name), file);
    if (i < 2) {
      ASSERT_EQ(table.close(handle), 0);
    }
  }
  io_->write("/b", "b");
  std::shared_ptr<host_file> other;
  std::uint64_t none = 0;
  EXPECT_EQ(table.open_to_change("/b", {}, none, other), -EMFILE);
  EXPECT_EQ(table.open("/b", false, none, other), -EMFILE);
  EXPECT_EQ(table.open("/a", false, none, other), 0) << "it has a version, which is being written";
  EXPECT_EQ(table.open_count(), 2u);
  EXPECT_EQ(table.find_writer(name), file);
}

// Few nodes, of which each is used again at once.
TEST_F(file_table_test, all_nodes_can_be_used_and_used_again) {
  for (int i = 0; i < 9; ++i) io_->write("/" + std::to_string(i), "a");
  file_table table(io_, 64, 8);
  std::vector<std::uint64_t> handles(9);
  std::shared_ptr<host_file> file;
  for (int round = 0; round < 100; ++round) {
    std::unordered_set<std::uint32_t> nodes;
    for (std::size_t i = 0; i < 8; ++i) {
      ASSERT_EQ(table.open_to_change("/" + std::to_string(i), {}, handles[i], file), 0);
      EXPECT_TRUE(nodes.insert(file->node()).second);
    }
    ASSERT_EQ(table.open_to_change("/8", {}, handles[8], file), -EMFILE);
    for (std::size_t i = 0; i < 8; ++i) ASSERT_EQ(table.close(handles[i]), 0);
  }
}

TEST_F(file_table_test, knows_no_handle_that_it_did_not_give) {
  io_->write("/a", "a");
  const std::uint64_t handle = open("/a");
  const auto expect_none = [&](std::uint64_t wrong) {
    ASSERT_EQ(table_.find(wrong), nullptr) << wrong;
    ASSERT_EQ(table_.close(wrong), -EBADF) << wrong;
  };
  for (const std::uint64_t wrong :
       {std::uint64_t{0}, std::uint64_t{2}, handle + 1, ~handle, ~std::uint64_t{0}})
    expect_none(wrong);
  for_each_flip(handle, expect_none);
  EXPECT_NE(table_.find(handle), nullptr);
}

TEST_F(file_table_test, says_so_when_it_is_full_and_goes_on_after_a_close) {
  io_->write("/a", "a");
  file_table table(io_, std::size_t{1} << 20);
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  std::uint32_t count = 0;
  int status = 0;
  while ((status = table.open("/a", false, handle, file)) == 0) ++count;
  EXPECT_EQ(status, -EMFILE);
  EXPECT_GE(count, 2 * limits::open_files_max - 1);
  EXPECT_EQ(table.close(handle), 0);
  EXPECT_EQ(table.open("/a", false, handle, file), 0);
}

TEST_F(file_table_test, a_closed_file_gives_its_descriptor_back) {
  io_->write("/a", "a");
  const std::uint64_t handle = open("/a");
  EXPECT_EQ(io_->open_now(), 1u);
  EXPECT_EQ(table_.close(handle), 0);
  EXPECT_EQ(io_->open_now(), 0u);
}

// ---- what can be opened

TEST_F(file_table_test, opens_only_regular_files_of_a_size_it_can_serve) {
  io_->make_directory("/d");
  io_->make_fifo("/f");
  io_->write("/large", "");
  io_->truncate("/large", limits::file_bytes_max);
  io_->write("/largest", "");
  io_->truncate("/largest", limits::file_bytes_max - 1);
  io_->write("/secret", "s");
  io_->refuse("/secret", EACCES);
  io_->make_link("/link", "/secret");
  io_->make_link("/dangling", "/nowhere");
  EXPECT_EQ(open_error("/d"), -EISDIR);
  EXPECT_EQ(open_error("/f"), -EINVAL);
  EXPECT_EQ(open_error("/large"), -EOVERFLOW);
  EXPECT_EQ(open_error("/largest"), 0);
  EXPECT_EQ(open_error("/secret"), -EACCES);
  EXPECT_EQ(open_error("/nothing"), -ENOENT);
  EXPECT_EQ(open_error("/dangling"), -ENOENT);
  EXPECT_EQ(open_error("/link", true), -ELOOP);
  EXPECT_EQ(open_error("/link", false), 0);
  EXPECT_EQ(io_->open_now(), 2u) << "files that could not be served stayed open";
}

// ---- versions

struct change {
  const char* name;
  std::function<void(memory_backend&)> make;
};
void PrintTo(const change& c, std::ostream* out) { *out << c.name; }

class version_change : public file_table_test, public ::testing::WithParamInterface<change> {};
INSTANTIATE_TEST_SUITE_P(
    , version_change,
    ::testing::Values(
        change{"overwritten", [](memory_backend& io) { io.write("/a", "CONTENT"); }},
        change{"rewritten_with_the_same", [](memory_backend& io) { io.write("/a", "content"); }},
        change{"one_byte_changed", [](memory_backend& io) { io.write_at("/a", 3, "X"); }},
        change{"appended", [](memory_backend& io) { io.write_at("/a", 7, "more"); }},
        change{"truncated", [](memory_backend& io) { io.truncate("/a", 3); }},
        change{"touched", [](memory_backend& io) { io.touch("/a"); }},
        change{"replaced", [](memory_backend& io) { io.replace("/a", "content"); }},
        change{"removed_and_written_again",
               [](memory_backend& io) {
                 io.remove("/a");
                 io.write("/a", "content");
               }},
        change{"resized_within_one_tick",
               [](memory_backend& io) {
                 io.freeze_times(true);
                 io.write_at("/a", 7, "more");
               }}),
    [](const auto& p) { return std::string(p.param.name); });

TEST_P(version_change, gives_the_file_a_new_version) {
  io_->write("/a", "content");
  const std::uint64_t before = open("/a");
  const std::uint64_t old = table_.find(before)->version().number;
  EXPECT_EQ(version("/a"), old);
  GetParam().make(*io_);
  const std::uint64_t changed = version("/a");
  EXPECT_GT(changed, old);
  EXPECT_EQ(version("/a"), changed) << "once per change";
  EXPECT_EQ(table_.find(before)->version().number, old)
      << "an open file keeps the version that it was opened with";
}

TEST_F(file_table_test, an_unchanged_file_keeps_its_version_after_it_was_closed) {
  io_->write("/a", "content");
  io_->make_link("/same", "/a");
  const std::uint64_t first = version("/a");
  io_->write("/b", "content");
  EXPECT_NE(version("/b"), first);
  EXPECT_EQ(version("/a"), first);
  EXPECT_EQ(version("/same"), first) << "another path to the same file";
}

TEST_F(file_table_test, a_version_number_never_comes_again) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 200; ++i) {
    io_->write("/a", i % 2 != 0 ? "odd" : "even");
    ASSERT_TRUE(seen.insert(version("/a")).second);
  }
}

TEST_F(file_table_test, a_file_that_changed_a_moment_ago_gets_a_new_version_at_each_open) {
  io_->set_age_ns(0);
  io_->write("/a", "content");
  const std::uint64_t first = version("/a");
  // A change that its times do not show, within the same tick of the file system's clock.
  io_->freeze_times(true);
  io_->write("/a", "CONTENT");
  EXPECT_NE(version("/a"), first);
  EXPECT_NE(version("/a"), version("/a"));
}

TEST_F(file_table_test, a_version_stays_when_the_change_is_old_enough) {
  // Changed a second ago: for another second it may be changed once more unseen.
  io_->set_age_ns(file_table::racy_ns - 1'000'000'000);
  const auto start = std::chrono::steady_clock::now();
  io_->write("/a", "content");
  const std::uint64_t first = version("/a"), second = version("/a");
  // On a machine that was busy elsewhere meanwhile this says nothing.
  const bool in_time = std::chrono::steady_clock::now() - start < std::chrono::milliseconds(900);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  const std::uint64_t settled = version("/a");
  if (in_time) {
    EXPECT_NE(second, first);
    EXPECT_NE(settled, first);
  }
  EXPECT_EQ(version("/a"), settled);
}

TEST_F(file_table_test, a_file_from_the_future_is_taken_for_one_that_may_still_change) {
  io_->set_age_ns(-std::int64_t{3600} * 1'000'000'000);
  io_->write("/a", "content");
  EXPECT_NE(version("/a"), version("/a"));
}

// ---- writers

class file_table_writers : public ::testing::Test {
 protected:
  struct opened {
    std::uint64_t handle, name;  // node_name()
  };
  opened open_to_write(const std::string& path) {
    opened o{};
    std::shared_ptr<host_file> file;
    EXPECT_EQ(table_.open_to_change(path, {false, true, true, true, false, 0600}, o.handle, file),
              0);
    o.name = node_name(file->node(), file->version().number);
    return o;
  }
  const std::shared_ptr<memory_backend> io_ = std::make_shared<memory_backend>();
  file_table table_{io_, 64, 4};
};

TEST_F(file_table_writers, a_version_is_written_through_any_file_that_is_open_for_it) {
  const opened first = open_to_write("/a"), second = open_to_write("/a"),
               other = open_to_write("/b");
  EXPECT_EQ(first.name, second.name);
  EXPECT_NE(first.name, other.name);
  EXPECT_EQ(table_.find_writer(other.name)->path(), "/b");
  EXPECT_EQ(table_.close(second.handle), 0);
  EXPECT_EQ(table_.find_writer(first.name), table_.find(first.handle));
  EXPECT_EQ(table_.close(first.handle), 0);
  EXPECT_EQ(table_.find_writer(first.name), nullptr);
  EXPECT_NE(table_.find_writer(other.name), nullptr);
}

// Some file systems repeat inode numbers, such as one that shows several others as one.
TEST(file_table, a_file_with_the_number_of_one_that_is_being_written_is_not_taken_for_it) {
  const auto io = std::make_shared<memory_backend>(memory_backend_options{.inode_count = 1});
  io->write("/a", "content of a");
  io->write("/b", "content of b");
  file_table table(io, 64, 4);
  std::uint64_t a = 0, b = 0;
  std::shared_ptr<host_file> first, second;
  ASSERT_EQ(table.open_to_change("/a", {}, a, first), 0);
  EXPECT_EQ(table.open("/b", false, b, second), -EBUSY);
  EXPECT_EQ(table.open_to_change("/b", {}, b, second), -EBUSY);
  EXPECT_EQ(table.close(a), 0);
  ASSERT_EQ(table.open("/b", false, b, second), 0);
  EXPECT_NE(&second->version(), &first->version());
  // Files that are only read have versions of their own.
  ASSERT_EQ(table.open("/a", false, a, first), 0);
  EXPECT_NE(&second->version(), &first->version());
}

// What was asked in time may be looked at late.
TEST_F(file_table_writers, a_late_write_finds_no_other_file_of_the_same_node) {
  for (const char* path : {"/c", "/d", "/e"})
    (void)open_to_write(path);  // the other nodes are taken
  const opened before = open_to_write("/a");
  file_table::lookups known;
  file_table::lookups::entry* found = nullptr;
  EXPECT_EQ(table_.look_up_writer(before.name, known, found), 0);
  EXPECT_EQ(table_.close(before.handle), 0);
  for (const char* path : {"/b", "/a"}) {
    const opened after = open_to_write(path);
    EXPECT_EQ(node_of(after.name), node_of(before.name)) << "or this tests nothing";
    EXPECT_EQ(table_.find_writer(before.name), nullptr);
    EXPECT_EQ(table_.remembered_writer(before.name, known), nullptr);
    EXPECT_EQ(table_.look_up_writer(before.name, known, found), -EBADF);
    EXPECT_EQ(table_.look_up_writer(after.name, known, found), 0);
    EXPECT_EQ(table_.close(after.handle), 0);
  }
}

// An open that has identified the file, when its last writer writes and leaves.
TEST_F(file_table_writers, an_open_beside_the_last_close_sees_what_was_written_before_it) {
  for (const bool writes : {true, false}) {
    io_->write("/a", "one");
    const std::uint64_t first = open_to_write("/a").handle;
    bool has_left = false;
    const schedule_hook hook([&](const char* name) {
      if (std::string(name) != "files.identified" || has_left) return;
      has_left = true;
      io_->write_at("/a", 3, ", two");
      EXPECT_EQ(table_.close(first), 0);
    });
    std::uint64_t second = 0;
    std::shared_ptr<host_file> file;
    if (writes) second = open_to_write("/a").handle;
    else EXPECT_EQ(table_.open("/a", false, second, file), 0);
    ASSERT_TRUE(has_left);
    EXPECT_EQ(table_.find(second)->version().identity.size, std::string("one, two").size());
    EXPECT_EQ(table_.close(second), 0);
  }
}

// A hostile kernel reads the handle before the open is answered, and closes it.
TEST_F(file_table_writers, a_file_that_is_closed_while_it_is_confirmed_does_not_write) {
  io_->write("/a", "old");
  const std::uint64_t first = open_to_write("/a").handle;
  std::atomic<std::uint64_t> joining{0};
  std::uint64_t second = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(table_.open_to_change("/a", {}, second, file, &joining), 0);
  ASSERT_TRUE(file->joined());
  {
    const schedule_hook hook([&](const char* name) {
      if (std::string(name) != "files.confirm") return;
      EXPECT_EQ(table_.close(second), 0);
    });
    EXPECT_TRUE(table_.confirm(second));
  }
  EXPECT_EQ(table_.close(first), 0);
  io_->write("/a", "by another program");
  ASSERT_EQ(table_.open("/a", false, second, file), 0);
  EXPECT_FALSE(file->joined());
  EXPECT_EQ(file->version().identity.size, 18u);
}

// A file has it through all its versions; another file under the same path has not.
TEST_F(file_table_writers, who_emptied_a_file_is_remembered) {
  const auto emptied_by = [&](bool writes) {
    std::uint64_t handle = 0;
    std::shared_ptr<host_file> file;
    const int status = writes ? table_.open_to_change("/a", {.write = true}, handle, file)
                              : table_.open("/a", false, handle, file);
    EXPECT_EQ(status, 0);
    const std::uint64_t launch = file->version().emptied_by;
    EXPECT_EQ(table_.close(handle), 0);
    return launch;
  };
  io_->write("/a", "content");
  EXPECT_EQ(emptied_by(true), 0u);
  std::uint64_t handle = 0;
  std::shared_ptr<host_file> file;
  ASSERT_EQ(table_.open_to_change("/a", {.write = true}, handle, file), 0);
  file->version().emptied_by = 77;
  EXPECT_EQ(emptied_by(true), 77u);
  EXPECT_EQ(table_.close(handle), 0);
  EXPECT_EQ(emptied_by(true), 77u);
  io_->write("/a", "other content");
  EXPECT_EQ(emptied_by(false), 77u);
  EXPECT_EQ(emptied_by(true), 77u);
  io_->replace("/a", "another file");
  EXPECT_EQ(emptied_by(true), 0u);
}

TEST_F(file_table_writers, wrong_names_find_nothing) {
  const opened a = open_to_write("/a");
  for (const std::uint64_t name :
       {a.name + 1, std::uint64_t{node_of(a.name)}, std::uint64_t{no_node}, ~a.name})
    EXPECT_EQ(table_.find_writer(name), nullptr);
  for_each_flip(
      a.name, [&](std::uint64_t wrong) { ASSERT_EQ(table_.find_writer(wrong), nullptr) << wrong; });
  EXPECT_NE(table_.find_writer(a.name), nullptr);
  EXPECT_EQ(table_.close(a.handle), 0);
}

}  // namespace
}  // namespace gpufs::testing

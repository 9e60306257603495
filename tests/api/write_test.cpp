// Single calls that change files: what they return, what the file has afterwards, who sees it.
#include <errno.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class write_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, write_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(write_test, a_new_file_has_what_was_written_after_its_close) {
  const std::string content = self_checking(3, 0, 0, 3 * page_bytes() + 100);
  const std::int32_t fd = open("new", O_WRONLY | O_CREAT);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(calls().write(fd, content, 0), static_cast<std::int64_t>(content.size()));
  EXPECT_EQ(calls().status(fd).status.size, content.size());
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("new", content);
  EXPECT_EQ(counted(counter::staged_loads) + counted(counter::direct_loads), 0u)
      << "nothing of it had to be fetched";
  const std::int32_t again = open("new");
  calls().expect_read(again, content, 0, content.size() + 10);
}

TEST_P(write_test, what_was_written_is_read_at_once) {
  std::string content = create("a", 5 * page_bytes() + 77);
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_GE(fd, 0);
  unsigned generation = 1;
  for (const std::uint64_t at :
       {std::uint64_t{0}, page_bytes() - 3, 2 * page_bytes(), 4 * page_bytes() + 5}) {
    for (const std::uint64_t n :
         {std::uint64_t{1}, std::uint64_t{17}, page_bytes(), page_bytes() + 9}) {
      const std::string part = self_checking(7, ++generation, at, n);
      ASSERT_EQ(calls().write(fd, part, static_cast<std::int64_t>(at), n % 5),
                static_cast<std::int64_t>(n));
      if (at + n > content.size()) content.resize(at + n);
      content.replace(at, n, part);
      calls().expect_read(fd, content, 0, content.size() + 10);
    }
  }
  EXPECT_EQ(calls().status(fd).status.size, content.size());
  EXPECT_EQ(calls().sync(fd), 0);
  expect_content("a", content);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

TEST_P(write_test, a_hole_reads_as_zeros) {
  const std::int32_t fd = open("new", O_RDWR | O_CREAT | O_TRUNC);
  const std::uint64_t at = 7 * page_bytes() + 11;
  ASSERT_EQ(calls().write(fd, "end", static_cast<std::int64_t>(at)), 3);
  std::string content(at, '\0');
  content += "end";
  calls().expect_read(fd, content, 0, content.size() + 1);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("new", content);
}

TEST_P(write_test, only_bytes_that_were_written_reach_the_file) {
  std::string content = create("a", 4 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  calls().expect_read(fd, content, 0, content.size());
  // Somebody else changes other bytes of the same pages; and one that is written here with the
  // value that it had.
  const std::string theirs(5, 'T'), ours(3, 'O'), same = content.substr(20, 4);
  files->write_at("a", 20, "????");
  files->write_at("a", 2 * page_bytes(), theirs);
  ASSERT_EQ(calls().write(fd, ours, 2 * static_cast<std::int64_t>(page_bytes()) + 5), 3);
  ASSERT_EQ(calls().write(fd, ours, 2 * static_cast<std::int64_t>(page_bytes()) - 1), 3);
  ASSERT_EQ(calls().write(fd, same, 20), 4);
  content.replace(2 * page_bytes(), 5, theirs);
  content.replace(2 * page_bytes() + 5, 3, ours);
  content.replace(2 * page_bytes() - 1, 3, ours);
  EXPECT_EQ(calls().sync(fd), 0);
  expect_content("a", content);
  // What they change now is not overwritten by what was in the cache.
  files->write_at("a", 2 * page_bytes() + 5, "new");
  content.replace(2 * page_bytes() + 5, 3, "new");
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
  const std::int32_t again = open("a");
  calls().expect_read(again, content, 0, content.size());
}

TEST_P(write_test, what_is_not_needed_any_more_reaches_the_file) {
  const std::uint64_t half = 4 * page_bytes();
  std::string content = create("a", 2 * half);
  const std::string first(half, '1'), second(half, '2');
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, first, 0), static_cast<std::int64_t>(half));
  ASSERT_EQ(calls().write(fd, second, static_cast<std::int64_t>(half)),
            static_cast<std::int64_t>(half));
  EXPECT_EQ(calls().advise(fd, 0, half - 1, POSIX_FADV_DONTNEED), 0);
  // Some of what lies behind it may have gone with it.
  EXPECT_EQ(files->content("a").substr(0, half), first);
  EXPECT_EQ(calls().advise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  expect_content("a", first + second);
  const std::uint64_t loads = counted(counter::staged_loads) + counted(counter::direct_loads);
  calls().expect_read(fd, first + second, 0, 2 * half);
  EXPECT_EQ(counted(counter::staged_loads) + counted(counter::direct_loads), loads)
      << "it is in the cache still";
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(write_test, whole_pages_are_not_fetched) {
  create("a", 8 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const std::string fresh = self_checking(9, 9, 0, 8 * page_bytes());
  ASSERT_EQ(calls().write(fd, fresh, 0), static_cast<std::int64_t>(fresh.size()));
  EXPECT_EQ(counted(counter::staged_loads) + counted(counter::direct_loads) +
                counted(counter::bulk_loads),
            0u);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", fresh);
}

TEST_P(write_test, a_file_larger_than_the_cache_can_be_written_and_rewritten) {
  std::string content = self_checking(5, 1, 0, 200 * page_bytes() + 13);
  const std::int32_t fd = open("new", O_RDWR | O_CREAT);
  ASSERT_EQ(calls().write(fd, content, 0), static_cast<std::int64_t>(content.size()));
  calls().expect_read(fd, content, 0, content.size());
  for (std::uint64_t at = 100; at + 100 < content.size(); at += 3 * page_bytes() + 50) {
    const std::string part = self_checking(6, 1, at, 60);
    ASSERT_EQ(calls().write(fd, part, static_cast<std::int64_t>(at)), 60);
    content.replace(at, 60, part);
  }
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_GT(counted(counter::write_backs), 100u);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("new", content);
}

TEST_P(write_test, truncation_cuts_what_is_cached_and_what_is_dirty) {
  std::string content = create("a", 6 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  calls().expect_read(fd, content, 0, content.size());
  ASSERT_EQ(calls().write(fd, std::string(3 * page_bytes(), 'x'),
                          static_cast<std::int64_t>(page_bytes() + 7)),
            static_cast<std::int64_t>(3 * page_bytes()));
  content.replace(page_bytes() + 7, 3 * page_bytes(), std::string(3 * page_bytes(), 'x'));
  const std::uint64_t size = 2 * page_bytes() + 5;
  EXPECT_EQ(calls().truncate(fd, static_cast<std::int64_t>(size)), 0);
  content.resize(size);
  calls().expect_read(fd, content, 0, 6 * page_bytes());
  EXPECT_EQ(calls().status(fd).status.size, size);
  // What is behind it now is zero, not what was there before.
  EXPECT_EQ(calls().truncate(fd, static_cast<std::int64_t>(4 * page_bytes() + 1)), 0);
  content.resize(4 * page_bytes() + 1, '\0');
  calls().expect_read(fd, content, 0, 6 * page_bytes());
  ASSERT_EQ(calls().write(fd, "z", static_cast<std::int64_t>(5 * page_bytes())), 1);
  content.resize(5 * page_bytes(), '\0');
  content += "z";
  calls().expect_read(fd, content, 0, 6 * page_bytes());
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

TEST_P(write_test, one_of_many_creates_exclusively) {
  const std::int32_t fd = open("new", O_RDWR | O_CREAT | O_EXCL);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(open("new", O_RDWR | O_CREAT | O_EXCL), -EEXIST);
  ASSERT_EQ(calls().write(fd, "x", 0), 1);
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(open("new", O_RDWR | O_CREAT | O_EXCL), -EEXIST);
  EXPECT_EQ(open("none", O_RDWR), -ENOENT);
  expect_content("new", "x");
}

TEST_P(write_test, appends_go_to_the_end) {
  std::string content = create("a", page_bytes() - 10);
  const std::int32_t fd = open("a", O_RDWR | O_APPEND);
  for (int i = 0; i < 20; ++i) {
    const std::string record = "record " + std::to_string(i) + ";";
    ASSERT_EQ(calls().write(fd, record, 0), static_cast<std::int64_t>(record.size()));
    content += record;
  }
  calls().expect_read(fd, content, 0, content.size() + 1);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

TEST_P(write_test, bytes_that_are_written_once_are_never_fetched) {
  std::string content = create("a", 4 * page_bytes());
  const std::int32_t fd = open("a", O_WRONLY | O_GWRONCE);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(calls().write(fd, "once", static_cast<std::int64_t>(page_bytes()) - 2), 4);
  content.replace(page_bytes() - 2, 4, "once");
  EXPECT_EQ(calls().read(fd, 0, 10).result, -EBADF);
  EXPECT_EQ(counted(counter::staged_loads) + counted(counter::direct_loads), 0u);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

TEST_P(write_test, who_opens_while_a_file_is_written_sees_it_as_it_is) {
  std::string content = create("a", 3 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  ASSERT_EQ(calls().write(fd, "ours", 10), 4);
  ASSERT_EQ(calls().write(fd, "more", static_cast<std::int64_t>(content.size())), 4);
  content.replace(10, 4, "ours");
  content += "more";
  const std::int32_t reader = open("a");
  ASSERT_GE(reader, 0);
  EXPECT_NE(reader, fd);
  calls().expect_read(reader, content, 0, content.size() + 1);
  ASSERT_EQ(calls().write(fd, "and more", static_cast<std::int64_t>(content.size())), 8);
  content += "and more";
  calls().expect_read(reader, content, 0, content.size() + 1);
  EXPECT_EQ(calls().write(reader, "x", 0), -EBADF);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
  calls().expect_read(reader, content, 0, content.size() + 1);
  EXPECT_EQ(calls().close(reader), 0);
}

TEST_P(write_test, what_others_changed_is_seen_by_the_next_open) {
  std::string content = create("a", 2 * page_bytes());
  for (int round = 0; round < 4; ++round) {
    const std::int32_t fd = open("a", O_RDWR);
    calls().expect_read(fd, content, 0, content.size());
    const std::string part = "round " + std::to_string(round);
    ASSERT_EQ(calls().write(fd, part, 5), static_cast<std::int64_t>(part.size()));
    content.replace(5, part.size(), part);
    EXPECT_EQ(calls().close(fd), 0);
    // Of the same size, within the same moment.
    files->write_at("a", page_bytes() + 3, part);
    content.replace(page_bytes() + 3, part.size(), part);
  }
  const std::int32_t fd = open("a");
  calls().expect_read(fd, content, 0, content.size());
}

TEST_P(write_test, a_removed_file_lives_until_it_is_closed) {
  std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  EXPECT_EQ(calls().unlink(files->path("a")), 0);
  EXPECT_EQ(open("a", O_RDWR), -ENOENT);
  EXPECT_EQ(calls().unlink(files->path("a")), -ENOENT);
  ASSERT_EQ(calls().write(fd, "x", 0), 1);
  content[0] = 'x';
  calls().expect_read(fd, content, 0, content.size());
  const std::int32_t other = open("a", O_RDWR | O_CREAT);
  ASSERT_GE(other, 0);
  EXPECT_NE(other, fd);
  ASSERT_EQ(calls().write(other, "other", 0), 5);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().close(other), 0);
  expect_content("a", "other");
}

TEST_P(write_test, a_renamed_file_is_found_by_its_new_name) {
  const std::string content = create("a", page_bytes());
  create("b", 10);
  const std::int32_t fd = open("a", O_RDWR);
  EXPECT_EQ(calls().rename(files->path("a"), files->path("b")), 0);
  EXPECT_EQ(open("a", O_RDWR), -ENOENT);
  const std::int32_t other = open("b");
  calls().expect_read(other, content, 0, content.size());
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().rename(files->path("none"), files->path("b")), -ENOENT);
}

TEST_P(write_test, what_is_stored_in_a_mapping_reaches_the_file) {
  std::string content = create("a", 3 * page_bytes() + 50);
  const std::int32_t fd = open("a", O_RDWR);
  const std::uint64_t at = page_bytes() + 10;
  const map_answer m = calls().map_write(fd, static_cast<std::int64_t>(at), 300);
  ASSERT_EQ(m.result, 300);
  EXPECT_EQ(calls().peek(m.pointer, 300), content.substr(at, 300));
  EXPECT_EQ(calls().poke(m.pointer + 7, "stored"), 6);
  content.replace(at + 7, 6, "stored");
  calls().expect_read(fd, content, 0, content.size());
  // Others' bytes of the same page, before and after.
  files->write_at("a", at + 100, "theirs");
  content.replace(at + 100, 6, "theirs");
  EXPECT_EQ(calls().msync(fd, m.pointer, 300), 0);
  expect_content("a", content);
  files->write_at("a", at + 7, "S");
  content[at + 7] = 'S';
  EXPECT_EQ(calls().poke(m.pointer + 8, "TOO"), 3);
  content.replace(at + 8, 3, "TOO");
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 300), 0);
  EXPECT_EQ(calls().sync(fd), 0);
  expect_content("a", content);
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, 300), -EINVAL);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

// What a store changes is what the file has, and not what it had when it was mapped.
TEST_P(write_test, what_is_stored_back_after_a_write_to_a_mapped_page_reaches_the_file) {
  const std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const map_answer m = calls().map_write(fd, 0, page_bytes());
  ASSERT_EQ(m.result, static_cast<std::int64_t>(page_bytes()));
  ASSERT_EQ(calls().write(fd, std::string(50, '#'), 20), 50);
  ASSERT_EQ(calls().sync(fd), 0);
  EXPECT_EQ(calls().poke(m.pointer + 20, content.substr(20, 50)), 50);
  EXPECT_EQ(calls().msync(fd, m.pointer, page_bytes()), 0);
  expect_content("a", content);
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, page_bytes()), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

TEST_P(write_test, what_is_stored_back_after_a_cut_of_a_mapped_page_reaches_the_file) {
  const std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const map_answer m = calls().map_write(fd, 0, page_bytes());
  ASSERT_EQ(m.result, static_cast<std::int64_t>(page_bytes()));
  ASSERT_EQ(calls().truncate(fd, 30), 0);
  ASSERT_EQ(calls().truncate(fd, static_cast<std::int64_t>(page_bytes())), 0);
  EXPECT_EQ(calls().poke(m.pointer + 20, content.substr(20, 50)), 50);
  EXPECT_EQ(calls().msync(fd, m.pointer, page_bytes()), 0);
  expect_content("a", content.substr(0, 70) + std::string(page_bytes() - 70, '\0'));
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, page_bytes()), 0);
  EXPECT_EQ(calls().close(fd), 0);
}

// What gwrite wrote to a mapped page goes to the file once: others may write the same bytes
// afterwards.
TEST_P(write_test, a_mapping_writes_nothing_that_was_not_stored_through_it) {
  std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  const map_answer m = calls().map_write(fd, 0, page_bytes());
  ASSERT_EQ(m.result, static_cast<std::int64_t>(page_bytes()));
  ASSERT_EQ(calls().write(fd, std::string(50, '#'), 20), 50);
  ASSERT_EQ(calls().sync(fd), 0);
  files->write_at("a", 20, "of another program");
  content.replace(20, 50, std::string(50, '#')).replace(20, 18, "of another program");
  EXPECT_EQ(calls().poke(m.pointer, "stored"), 6);
  content.replace(0, 6, "stored");
  EXPECT_EQ(calls().unmap_write(fd, m.pointer, page_bytes()), 0);
  EXPECT_EQ(calls().close(fd), 0);
  expect_content("a", content);
}

TEST_P(write_test, mappings_for_writing_end_with_page_and_file) {
  std::string content = create("a", 2 * page_bytes() + 50);
  const std::int32_t fd = open("a", O_RDWR), reader = open("a"), writer = open("a", O_WRONLY);
  const auto size = static_cast<std::int64_t>(content.size());
  const map_answer whole = calls().map_write(fd, 0, ~std::uint64_t{0}),
                   last = calls().map_write(fd, size - 50, 100);
  EXPECT_EQ(whole.result, static_cast<std::int64_t>(page_bytes()));
  EXPECT_EQ(last.result, 50);
  EXPECT_EQ(calls().map_write(fd, size, 1).result, 0);
  EXPECT_EQ(calls().map_write(fd, -1, 1).result, -EINVAL);
  EXPECT_EQ(calls().map_write(reader, 0, 1).result, -EACCES);
  EXPECT_EQ(calls().map_write(writer, 0, 1).result, -EACCES);
  EXPECT_EQ(calls().map_write(-1, 0, 1).result, -EBADF);
  // Two mappings of a page: each brings what was stored in its part.
  const map_answer other = calls().map_write(fd, 20, 30);
  EXPECT_EQ(calls().poke(whole.pointer + 3, "one"), 3);
  EXPECT_EQ(calls().poke(other.pointer, "two"), 3);
  content.replace(3, 3, "one");
  content.replace(20, 3, "two");
  EXPECT_EQ(calls().unmap_write(fd, other.pointer, 30), 0);
  EXPECT_EQ(calls().unmap_write(fd, whole.pointer, page_bytes()), 0);
  // What was cut off does not come back.
  EXPECT_EQ(calls().poke(last.pointer, "gone"), 4);
  EXPECT_EQ(calls().truncate(fd, size - 50), 0);
  content.resize(content.size() - 50);
  EXPECT_EQ(calls().unmap_write(fd, last.pointer, 50), 0);
  for (const std::int32_t d : {fd, reader, writer}) EXPECT_EQ(calls().close(d), 0);
  expect_content("a", content);
}

TEST_P(write_test, wrong_calls_are_refused) {
  create("a", 100);
  const std::int32_t fd = open("a", O_RDWR), reader = open("a");
  EXPECT_EQ(calls().write(fd, "x", -1), -EINVAL);
  EXPECT_EQ(calls().write(fd, "", 5), 0);
  EXPECT_EQ(calls().write(-1, "x", 0), -EBADF);
  EXPECT_EQ(calls().write(fd, "x", std::int64_t{1} << 60), -EFBIG);
  EXPECT_EQ(calls().truncate(fd, -1), -EINVAL);
  EXPECT_EQ(calls().truncate(fd, std::int64_t{1} << 60), -EFBIG);
  for (const std::int64_t none_has : {limits::file_bytes_max, limits::file_bytes_max + 1}) {
    EXPECT_EQ(calls().write(fd, "x", none_has - 1), -EFBIG) << none_has;
    EXPECT_EQ(calls().truncate(fd, none_has), -EFBIG) << none_has;
  }
  for (const std::int32_t wrong : {reader, -1, fd ^ 0x100}) {
    EXPECT_EQ(calls().write(wrong, "x", 0), -EBADF);
    EXPECT_EQ(calls().truncate(wrong, 0), -EBADF);
    EXPECT_EQ(calls().sync(wrong), -EBADF);
  }
  EXPECT_EQ(calls().close(fd), 0);
  EXPECT_EQ(calls().write(fd, "x", 0), -EBADF);
  expect_content("a", self_checking(7, 0, 0, 100));
}

// Two writes of one byte must not reach the file in the wrong order, however slow the host is with
// the first.
TEST_P(write_test, one_group_at_a_time_writes_a_page_back) {
  create("a", 2 * page_bytes());
  const std::int32_t fd = open("a", O_RDWR);
  fault slow;
  slow.on = operation::write;
  slow.nth = 1;
  slow.delay = std::chrono::milliseconds(60);
  io->add(slow);
  session other(fs(), GetParam().kind);
  ASSERT_EQ(calls().write(fd, "old", 5), 3);
  std::thread first([&] { EXPECT_EQ(calls().sync(fd), 0); });
  wait_until([&] { return io->calls(operation::write) != 0; });
  if (device() == device_kind::cpu) {  // a GPU may run the second kernel behind the first
    EXPECT_EQ(other.write(fd, "new", 5), 3);
    EXPECT_EQ(other.sync(fd), 0);
  }
  first.join();
  if (device() != device_kind::cpu) {
    EXPECT_EQ(other.write(fd, "new", 5), 3);
  }
  EXPECT_EQ(calls().close(fd), 0);
  std::string content = self_checking(7, 0, 0, 2 * page_bytes());
  expect_content("a", content.replace(5, 3, "new"));
}

// As two GPUs, or two processes: what each wrote is there after both have closed, and each sees the
// other's at its next open.
TEST_P(write_test, two_mounts_write_other_bytes_of_the_same_pages) {
  std::string content = create("a", 3 * page_bytes() + 20);
  mount_options theirs_too = options;
  theirs_too.ordinal = another_gpu();
  mount second(theirs_too);
  session other(second, GetParam().kind);
  for (int round = 0; round < 3; ++round) {
    const std::int32_t fd = open("a", O_RDWR), theirs = other.open(files->path("a"), O_RDWR);
    ASSERT_GE(fd, 0);
    ASSERT_GE(theirs, 0);
    calls().expect_read(fd, content, 0, content.size());
    other.expect_read(theirs, content, 0, content.size());
    for (std::uint64_t at = 0; at + 40 < content.size(); at += page_bytes() / 4) {
      const std::string mine(11, static_cast<char>('a' + round)),
          its(13, static_cast<char>('A' + round));
      ASSERT_EQ(calls().write(fd, mine, static_cast<std::int64_t>(at)), 11);
      ASSERT_EQ(other.write(theirs, its, static_cast<std::int64_t>(at) + 11), 13);
      content.replace(at, 11, mine);
      content.replace(at + 11, 13, its);
    }
    EXPECT_EQ(calls().close(fd), 0);
    EXPECT_EQ(other.close(theirs), 0);
    expect_content("a", content);
  }
}

// What one has cached, directly or staged, it does not serve once the other has changed the file
// and closed it.
TEST_P(write_test, two_mounts_see_what_the_other_made_of_a_file) {
  std::string content = create("a", 5 * page_bytes() + 20);
  options.extent_budget_bytes = std::uint64_t{4} << 20;
  mount_options theirs_too = options;
  theirs_too.ordinal = another_gpu();
  mount second(theirs_too);
  session other(second, GetParam().kind);
  const std::string path = files->path("a");
  for (unsigned round = 0; round < 4; ++round) {
    const bool is_mine = round % 2 == 0;
    session& writer = is_mine ? calls() : other;
    session& reader = is_mine ? other : calls();
    const std::int32_t fd = writer.open(path, O_RDWR);
    ASSERT_GE(fd, 0);
    writer.expect_read(fd, content, 0, content.size());
    const std::string part = self_checking(8, round, 0, page_bytes() + 100 * round);
    const std::uint64_t at = page_bytes() / 2 * (round + 1);
    ASSERT_EQ(writer.write(fd, part, static_cast<std::int64_t>(at)),
              static_cast<std::int64_t>(part.size()));
    if (content.size() < at + part.size()) content.resize(at + part.size(), '\0');
    content.replace(at, part.size(), part);
    // Once longer, once shorter.
    content.resize(round == 1 ? content.size() + page_bytes() : content.size() - 7, '\0');
    ASSERT_EQ(writer.truncate(fd, static_cast<std::int64_t>(content.size())), 0);
    EXPECT_EQ(writer.close(fd), 0);
    for (int again = 0; again < 2; ++again) {
      const std::int32_t seen = reader.open(path, O_RDONLY);
      ASSERT_GE(seen, 0);
      EXPECT_EQ(reader.status(seen).status.size, content.size());
      reader.expect_read(seen, content, 0, content.size());
      EXPECT_EQ(reader.close(seen), 0);
    }
  }
}

}  // namespace
}  // namespace gpufs::testing

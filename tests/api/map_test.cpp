// gmmap and gmunmap: what is mapped, how much, and what a mapping keeps others from.
#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class map_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, map_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(map_test, maps_up_to_the_end_of_the_page) {
  const std::string content = create("a", 3 * page_bytes() + 8192);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  for (const std::uint64_t page : {0, 1, 2}) {
    for (const std::uint64_t within :
         {std::uint64_t{0}, std::uint64_t{1}, page_bytes() / 2 + 3, page_bytes() - 1}) {
      const std::uint64_t offset = page * page_bytes() + within;
      const std::uint64_t room = page_bytes() - within;
      for (const std::uint64_t bytes : {std::uint64_t{1}, room, room + 1, ~std::uint64_t{0}}) {
        const map_answer m = calls().map(fd, static_cast<std::int64_t>(offset), bytes);
        ASSERT_EQ(m.result, static_cast<std::int64_t>(std::min(bytes, room)));
        expect_same_bytes(calls().peek(m.pointer, static_cast<std::uint64_t>(m.result)),
                          content.substr(offset, static_cast<std::uint64_t>(m.result)),
                          "mapped at " + std::to_string(offset));
        EXPECT_EQ(calls().unmap(m.pointer), 0);
      }
    }
  }
  EXPECT_EQ(counted(counter::staged_loads), 3u);
}

TEST_P(map_test, maps_up_to_the_end_of_the_file_and_zeros_behind_it) {
  options.cache_bytes = 8 * page_bytes();
  const std::string content = create("a", page_bytes() + 100);
  // The frames hold other bytes before.
  const std::string other = create("b", 20 * page_bytes());
  calls().expect_read(open("b"), other, 0, other.size());
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);

  const map_answer m = calls().map(fd, static_cast<std::int64_t>(page_bytes() + 20), page_bytes());
  ASSERT_EQ(m.result, 80);
  expect_same_bytes(calls().peek(m.pointer, page_bytes() - 20),
                    content.substr(page_bytes() + 20) + std::string(page_bytes() - 100, '\0'),
                    "the last page");
  EXPECT_EQ(calls().unmap(m.pointer), 0);
}

TEST_P(map_test, nothing_is_mapped_at_the_end_or_behind_it) {
  create("a", 100);
  create("empty", 0);
  const std::int32_t fd = open("a");
  const std::int32_t empty = open("empty");
  for (const std::int64_t offset : {std::int64_t{100}, std::int64_t{101}, std::int64_t{1} << 40,
                                    std::int64_t{0x7fffffffffffffff}}) {
    const map_answer m = calls().map(fd, offset, 10);
    EXPECT_EQ(m.result, 0) << offset;
    EXPECT_EQ(m.pointer, 0) << offset;
  }
  EXPECT_EQ(calls().map(empty, 0, 10).result, 0);
}

TEST_P(map_test, wrong_arguments_are_refused) {
  create("a", 100);
  const std::int32_t fd = open("a");
  EXPECT_EQ(calls().map(fd, -1, 10).result, -EINVAL);
  EXPECT_EQ(calls().map(fd, 0, 0).result, -EINVAL);
  EXPECT_EQ(calls().map(-1, 0, 10).result, -EBADF);
}

TEST_P(map_test, only_what_is_mapped_can_be_unmapped) {
  create("a", 3 * page_bytes());
  const std::int32_t fd = open("a");
  for (const bool unfenced : {false, true}) {
    const map_answer m = calls().map(fd, 10, 100);
    ASSERT_EQ(m.result, 100);
    const auto unmap = [&](std::int64_t pointer) { return calls().unmap(pointer, unfenced); };
    const auto frames_begin =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(fs().ref().page(0)));
    const auto cache_bytes = static_cast<std::int64_t>(fs().options().cache_bytes);
    EXPECT_EQ(unmap(0), -EINVAL);
    EXPECT_EQ(unmap(-1), -EINVAL);
    EXPECT_EQ(unmap(frames_begin - 1), -EINVAL);
    EXPECT_EQ(unmap(frames_begin + cache_bytes), -EINVAL);
    const auto page = static_cast<std::int64_t>(page_bytes());
    const std::int64_t frame = (m.pointer - frames_begin) / page;
    const std::int64_t another = frames_begin + (frame + 1) % (cache_bytes / page) * page;
    EXPECT_EQ(unmap(another), -EINVAL) << "a frame without a mapping";
    EXPECT_EQ(unmap(m.pointer + 50), 0) << "any pointer into the mapping will do";
    EXPECT_EQ(unmap(m.pointer), -EINVAL) << "the second time";
  }
}

TEST_P(map_test, a_mapping_of_no_bytes_needs_no_end) {
  for (const bool unfenced : {false, true}) {
    EXPECT_EQ(calls().unmap(0, unfenced, 0), 0) << "at the end of the file";
    EXPECT_EQ(calls().unmap(0, unfenced, -EIO), 0) << "of a gmmap that failed";
  }
}

TEST_P(map_test, a_page_can_be_mapped_many_times) {
  create("a", page_bytes());
  const std::int32_t fd = open("a");
  std::vector<std::int64_t> pointers;
  for (int i = 0; i < 5; ++i) pointers.push_back(calls().map(fd, i, 10).pointer);
  for (int i = 1; i < 5; ++i) EXPECT_EQ(pointers[i], pointers[0] + i) << "one page is one frame";
  for (const std::int64_t p : pointers) EXPECT_EQ(calls().unmap(p), 0);
  EXPECT_EQ(calls().unmap(pointers[0]), -EINVAL);
}

TEST_P(map_test, a_mapping_outlives_its_descriptor) {
  const std::string content = create("a", page_bytes());
  const std::int32_t fd = open("a");
  const map_answer m = calls().map(fd, 0, page_bytes());
  EXPECT_EQ(calls().close(fd), 0);
  expect_same_bytes(calls().peek(m.pointer, page_bytes()), content, "mapped");
  EXPECT_EQ(calls().unmap(m.pointer), 0);
}

TEST_P(map_test, mapped_pages_stay_when_others_are_evicted) {
  options.cache_bytes = 8 * page_bytes();
  const std::string content = create("a", 100 * page_bytes());
  const std::int32_t fd = open("a");
  std::vector<map_answer> mappings;
  for (const std::int64_t page : {3, 5, 50}) {
    mappings.push_back(
        calls().map(fd, page * static_cast<std::int64_t>(page_bytes()), page_bytes()));
    ASSERT_EQ(mappings.back().result, static_cast<std::int64_t>(page_bytes()));
  }
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_GT(counted(counter::evictions), 80u);
  std::size_t i = 0;
  for (const std::uint64_t page : {3, 5, 50}) {
    expect_same_bytes(calls().peek(mappings[i].pointer, page_bytes()),
                      content.substr(page * page_bytes(), page_bytes()), "mapped");
    EXPECT_EQ(calls().unmap(mappings[i].pointer), 0);
    ++i;
  }
}

TEST_P(map_test, each_member_maps_a_part_of_its_own) {
  options.cache_bytes = 160 * page_bytes();
  const std::string content = create("a", 130 * page_bytes() + 77);
  const std::int32_t fd = open("a");
  const auto page = static_cast<std::int32_t>(page_bytes());
  // Some pages are there, others are not.
  calls().expect_read(fd, content, 3 * page + 1, 2 * page_bytes());
  calls().expect_read(fd, content, 60 * page, 1);
  map_each_answer a = calls().map_each(fd, 0, 70 * page_bytes(), page);
  EXPECT_EQ(a.result, static_cast<std::int64_t>(70 * page_bytes()));
  EXPECT_EQ(a.error, 0);
  expect_same_bytes(a.bytes, content.substr(0, 70 * page_bytes()), "whole pages");
  const auto loads = [&] {
    return counted(counter::staged_loads) + counted(counter::direct_loads);
  };
  const std::uint64_t before = loads();
  a = calls().map_each(fd, 256, 70 * page_bytes() - 256, 256);
  EXPECT_EQ(a.error, 0);
  expect_same_bytes(a.bytes, content.substr(256, 70 * page_bytes() - 256),
                    "parts of pages, several members a page");
  EXPECT_EQ(loads(), before);

  // The last page's part, and nothing behind it.
  a = calls().map_each(fd, 129 * page, 3 * page_bytes(), page);
  EXPECT_EQ(a.result, static_cast<std::int64_t>(page_bytes() + 77));
  EXPECT_EQ(a.error, 0);
  expect_same_bytes(a.bytes.substr(0, page_bytes() + 77), content.substr(129 * page_bytes()),
                    "the end");
  EXPECT_EQ(a.bytes.substr(page_bytes() + 77), std::string(2 * page_bytes() - 77, untouched));
}

TEST_P(map_test, each_member_has_its_own_error) {
  create("a", 100);
  const std::int32_t fd = open("a");
  const map_each_answer a = calls().map_each(fd, -2, 6, 2);
  EXPECT_EQ(a.error, -EINVAL) << "of the member whose part begins before the file";
  EXPECT_EQ(a.result, 4) << "the others have theirs";
  EXPECT_EQ(calls().map_each(fd, 0, 0, 2).error, 0);
  EXPECT_EQ(calls().map_each(-1, 0, 8, 4).error, -EBADF);
}

TEST_P(map_test, what_each_member_mapped_can_be_evicted_afterwards) {
  options.cache_bytes = 40 * page_bytes();
  const std::string content = create("a", 200 * page_bytes());
  const std::int32_t fd = open("a");
  const auto page = static_cast<std::int32_t>(page_bytes());
  for (std::int32_t first = 0; first < 200;
       first += 8) {  // a block's warps together must not want more than there are
    const map_each_answer a = calls().map_each(fd, first * page, 8 * page_bytes(), page);
    ASSERT_EQ(a.error, 0);
    expect_same_bytes(
        a.bytes, content.substr(static_cast<std::uint64_t>(first) * page_bytes(), 8 * page_bytes()),
        "from page " + std::to_string(first));
  }
  EXPECT_GT(counted(counter::evictions), 100u);
  calls().expect_read(fd, content, 0, content.size());
}

TEST_P(map_test, calls_end_when_every_frame_is_mapped) {
  options.cache_bytes = 8 * page_bytes();
  options.reclaim_timeout = std::chrono::milliseconds(20);
  const std::string content = create("a", 10 * page_bytes());
  create("small", 100);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  std::vector<std::int64_t> pointers;
  const auto page = static_cast<std::int64_t>(page_bytes());
  for (std::int64_t p = 0; p < 8; ++p) {
    pointers.push_back(calls().map(fd, p * page, 1).pointer);
    ASSERT_NE(pointers.back(), 0);
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(calls().map(fd, 8 * page, 1).result, -ENOBUFS);
  EXPECT_EQ(calls().read(fd, 9 * page, 10).result, -ENOBUFS);
  EXPECT_EQ(calls().view(fd, static_cast<std::uint64_t>(8 * page), 1).error, -ENOBUFS);
  const map_each_answer each =
      calls().map_each(fd, 7 * page + 1, page_bytes(), static_cast<std::int32_t>(page - 1));
  EXPECT_EQ(each.error, -ENOBUFS);
  EXPECT_EQ(each.result, page - 1) << "who finds its page has it";
  EXPECT_EQ(calls().read(fd, 8 * page - 5, 10).result, 5)
      << "what is there comes first, then the error";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(counted(counter::no_frames), 5u);

  // What needs no frame works on; and everything does when one is free again.
  calls().expect_read(fd, content, 0, 8 * page_bytes());
  const std::int32_t small = open("small");
  EXPECT_GE(small, 0);
  EXPECT_EQ(calls().read(small, 0, 10).result, -ENOBUFS);
  EXPECT_EQ(calls().unmap(pointers[4]), 0);
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_EQ(calls().read(small, 0, 10).result, 10);
  EXPECT_EQ(counted(counter::no_frames), 6u);
}

}  // namespace
}  // namespace gpufs::testing

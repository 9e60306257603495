// gread: every alignment, sizes, the end of files, and the paths by which bytes come.
#include <errno.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/matrix.hpp"

namespace gpufs::testing {
namespace {

class read_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, read_test, ::testing::ValuesIn(all_settings()),
                         name_of_setting);

TEST_P(read_test, reads_what_the_file_holds) {
  const std::string content = create("a", 5 * page_bytes() + 123);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 0, content.size());
  calls().expect_read(fd, content, 0, 1);
  calls().expect_read(fd, content, static_cast<std::int64_t>(2 * page_bytes()), page_bytes());
  EXPECT_EQ(counted(counter::read_bytes), content.size() + 1 + page_bytes());
}

// Script of many reads in one launch, each compared with the file.
class many_reads {
 public:
  void add(std::uint64_t offset, std::uint64_t bytes, std::uint64_t misalignment) {
    constexpr std::uint64_t guard_bytes = 16;
    device_call c{action::read};
    c.offset = static_cast<std::int64_t>(offset);
    c.bytes = bytes;
    c.memory = (output_bytes_ + guard_bytes + 15) / 16 * 16 + misalignment;
    output_bytes_ = c.memory + bytes + guard_bytes;
    calls_.push_back(c);
  }

  void run(mount& m, group_kind kind, std::int32_t fd, const std::string& content,
           std::uint32_t scratch_bytes = 0) {
    stage s(m, kind, 1, nullptr, scratch_bytes);
    device_call set{action::set};
    set.offset = fd;
    calls_.insert(calls_.begin(), set);
    const performance p = s.run({calls_}, {}, output_bytes_);
    std::string expected(output_bytes_, untouched);
    for (std::size_t i = 1; i < calls_.size(); ++i) {
      const device_call& c = calls_[i];
      const std::string bytes = static_cast<std::uint64_t>(c.offset) < content.size()
                                    ? content.substr(static_cast<std::uint64_t>(c.offset), c.bytes)
                                    : std::string();
      expected.replace(c.memory, bytes.size(), bytes);
      ASSERT_EQ(p.outcomes[0][i].result, static_cast<std::int64_t>(bytes.size()))
          << "offset " << c.offset << ", bytes " << c.bytes;
      expect_same_bytes(
          p.output.substr(c.memory - 16, c.bytes + 32),
          expected.substr(c.memory - 16, c.bytes + 32),
          "offset " + std::to_string(c.offset) + ", bytes " + std::to_string(c.bytes));
    }
  }

 private:
  script calls_;
  std::uint64_t output_bytes_ = 0;
};

TEST_P(read_test, any_alignment_around_the_border_of_a_page) {
  const std::string content = create("a", 3 * page_bytes() + 37);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  many_reads reads;
  for (std::uint64_t before = 0; before <= 17; ++before) {
    for (const std::uint64_t bytes : {0, 1, 7, 8, 15, 16, 17, 33}) {
      reads.add(page_bytes() - before, bytes, (before * 7 + bytes) % 16);
    }
  }
  reads.run(fs(), GetParam().kind, fd, content);
}

TEST_P(read_test, any_alignment_of_memory_against_offset) {
  const std::string content = create("a", page_bytes() + 500);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  many_reads reads;
  for (std::uint64_t misalignment = 0; misalignment < 16; ++misalignment) {
    for (std::uint64_t offset = 0; offset < 16; ++offset)
      reads.add(offset, 300 + offset, misalignment);
  }
  reads.run(fs(), GetParam().kind, fd, content);
}

TEST_P(read_test, whole_pages_into_memory_of_any_alignment) {
  const std::string content = create("a", 4 * page_bytes() + 1);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  many_reads reads;
  for (const std::uint64_t misalignment : {0, 1, 4, 8, 15}) {
    reads.add(0, 2 * page_bytes(), misalignment);
    reads.add(page_bytes() - 1, 2 * page_bytes() + 2, misalignment);
    reads.add(3 * page_bytes() + 5, 2 * page_bytes(), misalignment);
  }
  reads.run(fs(), GetParam().kind, fd, content);
}

TEST_P(read_test, into_shared_memory) {
  constexpr std::uint32_t scratch_bytes = 100000;
  const std::uint64_t most = std::min<std::uint64_t>(20 * page_bytes(), scratch_bytes - 16);
  const std::string content = create("a", 20 * page_bytes() + 777);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  many_reads reads;
  for (int round = 0; round < 2; ++round) {  // misses, hits
    for (const std::uint64_t misalignment : {0, 3, 8}) {
      reads.add(0, most, misalignment);
      reads.add(page_bytes() - 16, most / 16 * 16, misalignment);
      reads.add(page_bytes() + 8, most - 8, misalignment);
      reads.add(19 * page_bytes(), page_bytes() + 1000, misalignment);
      reads.add(2 * page_bytes() + 16, 16, misalignment);
      reads.add(2 * page_bytes() + 16, 15, misalignment);
    }
  }
  reads.run(fs(), GetParam().kind, fd, content, scratch_bytes);
}

TEST_P(read_test, ends_where_the_file_ends) {
  const std::vector<std::uint64_t> sizes = {
      0, 1, 15, page_bytes() - 1, page_bytes(), page_bytes() + 1, 2 * page_bytes()};
  for (const std::uint64_t size : sizes) {
    const std::string name = std::to_string(size);
    const std::string content = create(name, size);
    const std::int32_t fd = open(name);
    ASSERT_GE(fd, 0);
    many_reads reads;
    for (const std::uint64_t back : {0, 1, 16, 300}) {
      if (back > size) continue;
      for (const std::uint64_t bytes : {back, back + 1, back + 1000, std::uint64_t{back / 2}})
        reads.add(size - back, bytes, 0);
    }
    reads.add(size + 1, 10, 0);
    reads.add(size + page_bytes(), 10, 0);
    reads.add(0, size + 100, 3);
    reads.run(fs(), GetParam().kind, fd, content);
  }
}

TEST_P(read_test, wrong_arguments_are_refused) {
  create("a", 1000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  constexpr std::int64_t largest = 0x7fffffffffffffff;
  EXPECT_EQ(calls().read_result(fd, -1, 10, 10), -EINVAL);
  EXPECT_EQ(calls().read_result(fd, -largest - 1, 10, 10), -EINVAL);
  EXPECT_EQ(calls().read_result(fd, largest, 1, 10), -EOVERFLOW);
  EXPECT_EQ(calls().read_result(fd, 1, ~std::uint64_t{0}, 1000), -EOVERFLOW);
  EXPECT_EQ(calls().read_result(fd, 1, std::uint64_t{1} << 63, 1000), -EOVERFLOW);
  EXPECT_EQ(calls().read_to_null(fd, 0, 10), -EFAULT);
}

TEST_P(read_test, no_bytes_need_no_memory_and_no_page) {
  create("a", 20000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  const std::uint64_t loads = counted(counter::staged_loads);
  EXPECT_EQ(calls().read_to_null(fd, 0, 0), 0);
  EXPECT_EQ(calls().read_to_null(fd, 20000, 10), 0);
  EXPECT_EQ(calls().read_to_null(fd, 0x7fffffffffffffff, 0), 0);
  EXPECT_EQ(calls().read_result(fd, 19990, (std::uint64_t{1} << 63) - 20000, 10), 10)
      << "as much as there is";
  EXPECT_EQ(counted(counter::staged_loads), loads + 1);
}

TEST_P(read_test, a_page_is_loaded_once) {
  const std::string content = create("a", 4 * page_bytes() + 9000);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 0, 4 * page_bytes());
  EXPECT_EQ(counted(counter::staged_loads), 4u);
  EXPECT_EQ(counted(counter::staged_bytes), 4 * page_bytes());
  EXPECT_EQ(counted(counter::hits), 0u);
  calls().expect_read(fd, content, 0, 4 * page_bytes());
  EXPECT_EQ(counted(counter::staged_loads), 4u);
  EXPECT_EQ(counted(counter::hits), 4u);
}

TEST_P(read_test, small_files_come_with_their_open) {
  const std::uint64_t staging_bytes = options.staging_bytes;
  for (const std::uint64_t size : {std::uint64_t{1}, staging_bytes - 1, staging_bytes}) {
    const std::string name = std::to_string(size);
    const std::string content = create(name, size);
    const std::uint64_t before = counted(counter::open_loads);
    const std::uint64_t bytes_before = counted(counter::open_bytes);
    const std::int32_t fd = open(name);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(counted(counter::open_loads) - before, (size + page_bytes() - 1) / page_bytes());
    EXPECT_EQ(counted(counter::open_bytes) - bytes_before, size);
    calls().expect_read(fd, content, 0, size + 1);
    EXPECT_EQ(counted(counter::staged_loads), 0u);
  }
  const std::uint64_t before = counted(counter::open_loads);
  const std::string content = create("larger", staging_bytes + 1);
  const std::int32_t fd = open("larger");
  ASSERT_GE(fd, 0);
  EXPECT_EQ(counted(counter::open_loads), before);
  calls().expect_read(fd, content, 0, staging_bytes + 1);
  EXPECT_EQ(counted(counter::staged_loads), (staging_bytes + page_bytes()) / page_bytes());
}

TEST_P(read_test, files_larger_than_the_cache_are_read_through_it) {
  options.cache_bytes = 8 * page_bytes();
  const std::string content = create("a", 20 * page_bytes() + 77);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  calls().expect_read(fd, content, 0, content.size());
  calls().expect_read(fd, content, 0, content.size());
  EXPECT_GE(counted(counter::evictions), 30u);
  EXPECT_EQ(counted(counter::no_frames), 0u);
}

TEST_P(read_test, offsets_up_to_2_to_the_48) {
  files->write("a", "begin");
  std::uint64_t size = (std::uint64_t{1} << 48) - 3;
  while (size > 1000) {  // as large as the file system allows
    try {
      files->truncate("a", size);
      break;
    } catch (const error&) {
      size /= 2;
    }
  }
  ASSERT_GT(size, std::uint64_t{1} << 32) << "no sparse files here";
  const std::string end = self_checking(7, 0, size - 100, 100);
  files->write_at("a", size - 100, end);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);
  EXPECT_EQ(calls().status(fd).status.size, size);
  const auto at = static_cast<std::int64_t>(size);
  EXPECT_EQ(calls().read(fd, at - 100, 200).bytes, end);
  EXPECT_EQ(calls().read(fd, at - 101, 200).bytes, std::string(1, '\0') + end);
  EXPECT_EQ(calls().read(fd, at - 1, 1).bytes, end.substr(99));
  EXPECT_EQ(calls().read(fd, at, 1).result, 0);
  EXPECT_EQ(calls().read(fd, at / 2, 100).bytes, std::string(100, '\0'));
  EXPECT_EQ(calls().read(fd, 0, 6).bytes, std::string("begin\0", 6));
}

class direct_read_test : public conformance {};
INSTANTIATE_TEST_SUITE_P(conformance, direct_read_test,
                         ::testing::ValuesIn(settings({source::posix}, {512, 4096, 65536})),
                         name_of_setting);

TEST_P(direct_read_test, the_direct_path_gives_the_same_bytes) {
  options.extent_budget_bytes = std::uint64_t{64} << 20;
  if (fs().direct_path() != "on") GTEST_SKIP() << "no direct path: " << fs().direct_path();
  constexpr std::int64_t extents = 6;
  const auto extent_bytes = static_cast<std::int64_t>(options.extent_bytes);
  const std::string content =
      create("a", static_cast<std::uint64_t>((extents - 1) * extent_bytes) + 34321);
  const std::int32_t fd = open("a");
  ASSERT_GE(fd, 0);

  // The first read of an extent has it registered; a later one tells where it is; the rest comes
  // without the host.
  for (std::int64_t e = 0; e < extents; ++e) calls().expect_read(fd, content, e * extent_bytes, 1);
  wait_until([&] { return fs().stats().extents_registered == extents; });
  ASSERT_EQ(fs().stats().extents_registered, static_cast<std::uint64_t>(extents));
  EXPECT_EQ(fs().stats().extent_bytes, content.size());
  const std::uint64_t pages_of_an_extent = options.extent_bytes / page_bytes();
  if (pages_of_an_extent > 1) {
    for (std::int64_t e = 0; e < extents; ++e)
      calls().expect_read(fd, content, e * extent_bytes + 32768, 1);
    const std::uint64_t staged = counted(counter::staged_loads);
    for (std::uint64_t at = 0; at < content.size(); at += 50000) {
      calls().expect_read(fd, content, static_cast<std::int64_t>(at), 60000, at % 16);
    }
    EXPECT_EQ(counted(counter::staged_loads), staged);
    EXPECT_GE(counted(counter::direct_loads), content.size() / page_bytes() - 2 * extents);
  } else {
    calls().expect_read(fd, content, 0, content.size());
  }
}

TEST_P(read_test, each_member_reads_a_part_of_its_own) {
  options.cache_bytes = 160 * page_bytes();
  const std::string content = create("a", 130 * page_bytes() + 77);
  const std::int32_t fd = open("a");
  // Some pages are there, others are not.
  calls().expect_read(fd, content, static_cast<std::int64_t>(3 * page_bytes() + 1),
                      2 * page_bytes());
  calls().expect_read(fd, content, static_cast<std::int64_t>(60 * page_bytes()), 1);
  for (const std::uint64_t piece : {page_bytes(), page_bytes() / 2 - 8, std::uint64_t{77}}) {
    for (const std::uint64_t offset :
         {std::uint64_t{0}, std::uint64_t{256}, 90 * page_bytes() + 3}) {
      const std::uint64_t bytes = 300 * piece;  // also behind the end
      const map_each_answer a = calls().read_each(fd, static_cast<std::int64_t>(offset), bytes,
                                                  static_cast<std::int32_t>(piece));
      const std::string expected = offset < content.size() ? content.substr(offset, bytes) : "";
      EXPECT_EQ(a.result, static_cast<std::int64_t>(expected.size()));
      EXPECT_EQ(a.error, 0);
      expect_same_bytes(a.bytes, expected + std::string(bytes - expected.size(), untouched),
                        "pieces");
    }
  }
  EXPECT_EQ(calls().read_each(fd, -2, 6, 2).error, -EINVAL)
      << "of the member whose part begins before the file";
  EXPECT_EQ(calls().read_each(-1, 0, 8, 4).error, -EBADF);
}

}  // namespace
}  // namespace gpufs::testing

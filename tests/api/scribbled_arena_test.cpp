// A kernel may write anything into the mount's device memory. What the host reads of it is not followed anywhere.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "api/session.hpp"
#include "gpufs/gpufs.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

class scribbled_arena : public ::testing::Test {
 protected:
  static mount_options small() {
    mount_options options;
    options.device = device_kind::cpu;
    options.cache_bytes = 1 << 20;
    options.open_files = 64;
    options.workers = 1;
    return options;
  }
  void SetUp() override {
    session calls(fs_, group_kind::thread);
    ASSERT_GE(calls.open(folder_.write("read", "content")), 0);
    ASSERT_GE(calls.open(folder_.write("written", "content"), O_RDWR), 0);
    ASSERT_EQ(fs_.file_stats().size(), 2u);
  }
  const temporary_folder folder_;
  const mount fs_{small()};
};

TEST_F(scribbled_arena, the_number_of_a_files_node_is_checked) {
  const mount_ref ref = fs_.ref();
  const std::uint32_t nodes = ref.layout.node_count;
  for (const std::uint32_t node : {nodes, nodes + 1, 0x7fff'ffffu, 0xffff'ffffu}) {
    for (std::uint32_t record = 0; record < ref.layout.file_count; ++record) {
      for (std::uint32_t copy = 0; copy < file_copies; ++copy)
        ref.facts_of(record, copy).size.store_relaxed(file_facts::size_in_node | node);
    }
    const std::vector<file_statistics> stats = fs_.file_stats();
    ASSERT_EQ(stats.size(), 2u);
    for (const file_statistics& f : stats) EXPECT_EQ(f.size, 7u) << "the host's own number";
  }
}

TEST_F(scribbled_arena, the_host_reads_on_whatever_is_there) {
  const mount_ref ref = fs_.ref();
  std::mt19937_64 random(11);
  // All tables: everything but the pages themselves.
  for (int round = 0; round < 30; ++round) {
    for (std::uint64_t at = 0; at + 8 <= ref.layout.pages; at += 8) {
      const std::uint64_t word = round == 0 ? ~std::uint64_t{0} : random() >> random() % 64;
      if (round == 0 || random() % 4 == 0) std::memcpy(ref.arena + at, &word, sizeof word);
    }
    for (const file_statistics& f : fs_.file_stats()) EXPECT_FALSE(f.path.empty());
    (void)fs_.stats();
  }
}

}  // namespace
}  // namespace gpufs::testing

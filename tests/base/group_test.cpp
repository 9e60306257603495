// What groups promise: ranks, one leader, broadcasts that reach every member, numbers for sharing
// out work.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpufs/base/group.cuh"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"
#include "support/memory_backend.hpp"

#if defined(__CUDACC__)
#include <cooperative_groups.h>
#endif

namespace gpufs::testing {

struct broadcast_words {
  std::uint32_t words[10];
};

struct group_record {
  std::uint64_t grid_rank, grid_size;
  std::uint32_t rank, size, leader;
  std::uint32_t small;   // of a 4-byte broadcast
  std::uint64_t medium;  // of an 8-byte one
  broadcast_words large;
  std::uint32_t rounds_wrong;
};

// Each thread of the launch fills the record of its own number.
template <class Group>
struct describe_group_kernel {
  group_record* records;
  GPUFS_HD void operator()(const mount_ref&) const {
    const Group g{};
    group_record r{};
    r.grid_rank = Group::grid_rank();
    r.grid_size = Group::grid_size();
    r.rank = g.rank();
    r.size = g.size();
    r.leader = g.is_leader() ? 1 : 0;
    const auto me = static_cast<std::uint32_t>(thread_group::grid_rank());
    r.small = g.broadcast(1000 + me);
    r.medium = g.broadcast((std::uint64_t{me} << 32) | 7u);
    broadcast_words mine{};
    for (std::uint32_t i = 0; i < 10; ++i) mine.words[i] = me * 16 + i;
    r.large = g.broadcast(mine);
    // One after the other: none may overtake the reading of the one before.
    for (std::uint32_t i = 0; i < 100; ++i) {
      const std::uint32_t got = g.broadcast(g.is_leader() ? i : ~0u);
      if (got != i) ++r.rounds_wrong;
    }
    records[thread_group::grid_rank()] = r;
  }
};

// The lanes of a warp split by their number modulo 3; each part finds its own size and the first
// lane's number.
struct matching_record {
  std::uint32_t size, rank, first;
};
struct matching_kernel {
  matching_record* records;
  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group all;
    const auto me = static_cast<std::uint32_t>(thread_group::grid_rank());
    const std::uint32_t lane = all.rank();
    const lane_group some = all.matching(lane % 3, 5);
    matching_record r{};
    r.size = some.size();
    r.rank = some.rank();
    r.first = some.broadcast(lane);
    records[me] = r;
  }
};

// What members learn from each other: for the whole warp, for every third lane of it, and for the
// block.
struct together_record {
  std::uint32_t count, count_of_some, leading, leading_of_some, from_last, from_second_of_some,
      all_true, all_but_one;
  std::uint64_t least, least_again;
};
struct together_kernel {
  together_record* records;
  GPUFS_HD void operator()(const mount_ref&) const {
    const warp_group warp = block_group::warp();
    const block_group block{};
    const std::uint32_t lane = warp.rank();
    together_record r{};
    r.count = warp.count(lane % 2 == 0);
    r.leading = warp.leading(lane < 7);
    r.from_last = warp.from(100 + lane, warp.size() - 1);
    const lane_group some = warp.matching(lane % 3, 0);
    r.count_of_some = some.count(lane >= 7);
    r.leading_of_some = some.leading(lane < 7);
    r.from_second_of_some = some.from(100 + lane, some.size() > 1 ? 1 : 0);
    r.all_true = block.all(true) ? 1 : 0;
    r.all_but_one = block.all(block.rank() != block.size() - 1) ? 1 : 0;
    r.least = block.least((std::uint64_t{1} << 40) + (block.rank() * 37 + 11) % 101);
    r.least_again = block.least(block.rank() == block.size() - 1 ? 5 : 6);
    records[thread_group::grid_rank()] = r;
  }
};

// The lanes of a warp take different ways, and each way makes the group.
struct split_record {
  std::uint32_t size, rank, first, count, converged, converged_sum;
};
struct split_kernel {
  split_record* records;
  GPUFS_HD void operator()(const mount_ref&) const {
    const auto me = static_cast<std::uint32_t>(thread_group::grid_rank());
    const std::uint32_t lane = me % 32;
    split_record r{};
    const auto use = [&](const warp_group& g) {
      r.size = g.size();
      r.rank = g.rank();
    };
    if (lane % 3 == 0) {
      const std::uint64_t start = platform::now_ns();
      for (std::uint32_t attempt = 0; platform::elapsed_ns(start) < 100'000; ++attempt)
        platform::pause(attempt);
      use(this_warp());
    } else {
      const lane_group some = converged_lanes();
      r.converged = some.size();
      r.converged_sum = static_cast<std::uint32_t>(some.sum(1));
      use(this_warp());
    }
    const warp_group warp = this_warp();
    r.first = warp.broadcast(me);
    r.count = warp.count(lane % 2 == 0);
    records[me] = r;
  }
};

#if defined(__CUDACC__)
// Tiles of cooperative groups, of 32 threads and of 8.
struct tile_record {
  std::uint64_t grid_rank;
  std::uint32_t size_of_warp, size, rank, first;
};
struct tile_kernel {
  tile_record* records;
  GPUFS_HD void operator()([[maybe_unused]] const mount_ref& fs) const {
#if defined(__CUDA_ARCH__)
    const auto block = cooperative_groups::this_thread_block();
    const warp_group warp = as_group(cooperative_groups::tiled_partition<32>(block));
    const auto me = static_cast<std::uint32_t>(thread_group::grid_rank());
    const lane_group some = as_group(cooperative_groups::tiled_partition<8>(block));
    records[me] = {warp.grid_rank(), warp.size(), some.size(), some.rank(), some.broadcast(me)};
#endif
  }
};

// The block opens "numbers", tiles of each size read their parts of it, and the block closes it.
struct calls_by_tiles_kernel {
  const char* path;
  char* bytes;
  std::int32_t* failed;
  template <std::uint32_t Threads, class Block>
  GPUFS_HD void read_part([[maybe_unused]] const Block& block, [[maybe_unused]] const mount_ref& fs,
                          [[maybe_unused]] std::int32_t fd,
                          [[maybe_unused]] std::uint64_t begin) const {
#if defined(__CUDA_ARCH__)
    const auto tile = cooperative_groups::tiled_partition<Threads>(block);
    const std::uint64_t at = begin + tile.meta_group_rank() * 10;
    if (gread(tile, fs, fd, bytes + at, 10, static_cast<std::int64_t>(at)) != 10) *failed = 1;
    const mapping m = gmmap(tile, fs, fd, static_cast<std::int64_t>(at), 10);
    if (m.bytes != 10 || gmunmap(tile, fs, m) != 0) *failed = 2;
#endif
  }
  GPUFS_HD void operator()([[maybe_unused]] const mount_ref& fs) const {
#if defined(__CUDA_ARCH__)
    const auto block = cooperative_groups::this_thread_block();
    const std::int32_t fd = gopen(block, fs, path);
    if (fd < 0) *failed = fd;
    read_part<32>(block, fs, fd, 0);
    read_part<8>(block, fs, fd, 1000);
    read_part<1>(block, fs, fd, 2000);
    if (gclose(block, fs, fd) != 0) *failed = 3;
#endif
  }
};
#endif

static_assert(gpufs::group<thread_group> && gpufs::group<warp_group> && gpufs::group<lane_group> &&
              gpufs::group<block_group>);
static_assert(!gpufs::group<int> && !gpufs::group<mount_ref>);
#if defined(__CUDACC__)
static_assert(gpufs::group<cooperative_groups::thread_block> &&
              gpufs::group<cooperative_groups::thread_block_tile<16>> &&
              gpufs::group<cooperative_groups::thread_block_tile<32>>);
// Its lanes cannot be known.
static_assert(!gpufs::group<cooperative_groups::coalesced_group> &&
              !gpufs::group<cooperative_groups::grid_group> &&
              !gpufs::group<cooperative_groups::thread_block_tile<64>>);
#endif

// A block has 96 threads on a GPU and one on the CPU device.
constexpr std::uint32_t group_test_blocks = 5;
constexpr std::uint32_t group_test_threads = 96;

template <class Group>
void expect_group(std::uint32_t size_on_gpu) {
  const bool gpu = device() == device_kind::cuda;
  const std::uint32_t threads = gpu ? group_test_blocks * group_test_threads : group_test_blocks;
  const std::uint32_t size = gpu ? size_on_gpu : 1;
  mount m(base_options());
  const device_array<group_record> records(m, threads);
  launch(m, {group_test_blocks, group_test_threads, 0, nullptr},
         describe_group_kernel<Group>{records.data()});
  const std::vector<group_record> got = records.download();
  for (std::uint32_t t = 0; t < threads; ++t) {
    const group_record& r = got[t];
    const std::uint32_t leader = t / size * size;
    ASSERT_EQ(r.size, size);
    ASSERT_EQ(r.rank, t % size) << "thread " << t;
    ASSERT_EQ(r.leader, t == leader ? 1u : 0u) << "thread " << t;
    ASSERT_EQ(r.grid_rank, t / size) << "thread " << t;
    ASSERT_EQ(r.grid_size, threads / size);
    ASSERT_EQ(r.small, 1000 + leader) << "thread " << t;
    ASSERT_EQ(r.medium, (std::uint64_t{leader} << 32) | 7u) << "thread " << t;
    for (std::uint32_t i = 0; i < 10; ++i)
      ASSERT_EQ(r.large.words[i], leader * 16 + i) << "thread " << t;
    ASSERT_EQ(r.rounds_wrong, 0u) << "thread " << t;
  }
}

TEST(group, a_thread_is_its_own_leader) { expect_group<thread_group>(1); }
TEST(group, a_warp_has_one_leader) { expect_group<warp_group>(32); }
TEST(group, a_block_has_one_leader) { expect_group<block_group>(group_test_threads); }

TEST(group, matching_lanes_form_groups_of_their_own) {
  const std::uint32_t lanes = device() == device_kind::cuda ? 32 : 1;
  mount m(base_options());
  const device_array<matching_record> records(m, lanes);
  launch(m, {1, 32, 0, nullptr}, matching_kernel{records.data()});
  const std::vector<matching_record> got = records.download();
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const std::uint32_t first = lane % 3;
    EXPECT_EQ(got[lane].size, (lanes - first + 2) / 3) << "lane " << lane;
    EXPECT_EQ(got[lane].rank, lane / 3) << "lane " << lane;
    EXPECT_EQ(got[lane].first, first) << "lane " << lane;
  }
}

TEST(group, a_warp_is_whole_whatever_ways_its_lanes_took) {
  mount m(base_options());
  const bool gpu = device() == device_kind::cuda;
  const std::uint32_t threads = gpu ? 80 : 1;
  const device_array<split_record> records(m, threads);
  launch(m, {1, threads, 0, nullptr}, split_kernel{records.data()});
  const auto got = records.download();
  for (std::uint32_t t = 0; t < threads; ++t) {
    const std::uint32_t lanes = gpu ? (t < 64 ? 32 : 16) : 1;
    EXPECT_EQ(got[t].size, lanes) << t;
    EXPECT_EQ(got[t].rank, t % 32);
    EXPECT_EQ(got[t].first, t / 32 * 32);
    EXPECT_EQ(got[t].count, (lanes + 1) / 2);
    if (t % 32 % 3 == 0) continue;
    EXPECT_GE(got[t].converged, 1u);
    EXPECT_LE(got[t].converged, lanes - (lanes + 2) / 3);
    EXPECT_EQ(got[t].converged_sum, got[t].converged);
  }
}

TEST(group, converged_lanes_have_no_number_in_the_launch) {
  const lane_group some = converged_lanes();
  EXPECT_EQ(some.size(), 1u);
  EXPECT_TRUE(some.is_leader());
  EXPECT_EQ(some.apart().size(), 1u);
  constexpr auto has_number = [](auto g) {
    return requires { g.grid_rank(); } || requires { g.grid_size(); };
  };
  EXPECT_FALSE(has_number(some));
  EXPECT_TRUE(has_number(this_warp()));
}

#if defined(__CUDACC__)
TEST(group, a_tile_of_cooperative_groups_is_a_group) {
  constexpr std::uint32_t threads = 96;
  mount m(base_options());
  const device_array<tile_record> records(m, 2 * threads);
  launch(m, {2, threads, 0, nullptr}, tile_kernel{records.data()});
  const auto got = records.download();
  for (std::uint32_t t = 0; t < 2 * threads; ++t) {
    EXPECT_EQ(got[t].grid_rank, t / 32);
    EXPECT_EQ(got[t].size_of_warp, 32u);
    EXPECT_EQ(got[t].size, 8u);
    EXPECT_EQ(got[t].rank, t % 8);
    EXPECT_EQ(got[t].first, t / 8 * 8);
  }
}
#endif

#if defined(__CUDACC__)
TEST(group, calls_take_blocks_and_tiles_of_cooperative_groups) {
  const auto io = std::make_shared<memory_backend>();
  std::string content;
  for (int i = 0; i < 4000; ++i) content += static_cast<char>('a' + i * 7 % 26);
  io->write("numbers", content);
  mount_options options = base_options();
  options.backend = io;
  mount m(options);
  const device_path path(m, "numbers");
  const device_array<char> bytes(m, 4000);
  const device_array<std::int32_t> failed(m, 1);
  launch(m, {1, 64, 0, nullptr}, calls_by_tiles_kernel{path.data(), bytes.data(), failed.data()});
  const std::vector<char> got = bytes.download();
  EXPECT_EQ(failed.download()[0], 0);
  // Two tiles of 32 threads, eight of 8 and 64 of one.
  for (const auto& [begin, count] : {std::pair{0u, 20u}, {1000u, 80u}, {2000u, 640u}})
    EXPECT_EQ(std::string(got.data() + begin, count), content.substr(begin, count)) << begin;
}
#endif

TEST(group, members_learn_from_each_other) {
  mount m(base_options());
  const bool gpu = device() == device_kind::cuda;
  // The last warp of a block is not full.
  const std::uint32_t threads = gpu ? 80 : 1;
  const device_array<together_record> records(m, threads);
  launch(m, {1, threads, 0, nullptr}, together_kernel{records.data()});
  const auto got = records.download();
  std::uint64_t least = ~std::uint64_t{0};
  for (std::uint32_t t = 0; t < threads; ++t)
    least = std::min(least, (std::uint64_t{1} << 40) + (t * 37 + 11) % 101);
  for (std::uint32_t t = 0; t < threads; ++t) {
    const together_record& r = got[t];
    const std::uint32_t lane = t % 32, lanes = gpu ? (t < 64 ? 32 : 16) : 1;
    EXPECT_EQ(r.count, (lanes + 1) / 2);
    EXPECT_EQ(r.leading, std::min(7u, lanes));
    EXPECT_EQ(r.from_last, 100 + lanes - 1);
    // Lanes 0, 3, 6, 9, ...; 1, 4, 7, ...; 2, 5, 8, ...
    EXPECT_EQ(r.leading_of_some, gpu ? (lane % 3 == 0 ? 3u : 2u) : 1u) << t;
    // All of them but those before lane 7.
    EXPECT_EQ(r.count_of_some, gpu ? (lanes - lane % 3 + 2) / 3 - r.leading_of_some : 0u) << t;
    EXPECT_EQ(r.from_second_of_some, gpu ? 100 + lane % 3 + 3 : 100u) << t;
    EXPECT_EQ(r.all_true, 1u);
    EXPECT_EQ(r.all_but_one, 0u);
    EXPECT_EQ(r.least, least);
    EXPECT_EQ(r.least_again, 5u);
  }
}

}  // namespace gpufs::testing

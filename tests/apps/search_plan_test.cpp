// How searches cut databases, for random databases, caches and devices.
#include "search/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "support/seeds.hpp"

namespace gpufs::search {
namespace {

struct random_search {
  job::mount_facts mount{};
  question q;
  explicit random_search(std::mt19937_64& random) {
    const auto below = [&](std::uint64_t n) {
      return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
    };
    const auto size = [&](unsigned bits) { return 1 + below(std::uint64_t{1} << below(bits + 1)); };
    mount.page_bytes = std::uint64_t{512} << below(13);
    mount.cache_bytes = mount.page_bytes * (16 + size(20));
    mount.bulk_bytes = below(4) == 0 ? 0 : size(25);
    mount.multiprocessors = static_cast<std::uint32_t>(size(8));
    q.dimensions = size(16);
    q.queries = {"", 0, q.dimensions * sizeof(float), size(14)};
    q.top = static_cast<std::uint32_t>(below(2) * size(10));
    for (std::uint64_t n = below(5); n > 0; --n)
      q.databases.push_back(
          {"", 4 * below(100), q.dimensions * sizeof(float) + 4 * below(3), below(2) * size(14)});
  }
};

class search_plan : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  std::mt19937_64 random_{GetParam()};
};

// As a block finds them (scan).
TEST_P(search_plan, chunks_are_all_vectors_once_and_in_order) {
  for (int i = 0; i < 300; ++i) {
    const random_search search(random_);
    const plan how(search.mount, search.q);
    const std::vector<vectors_place> places = places_of(search.q, how);
    ASSERT_EQ(places.size(), search.q.databases.size() + 2);
    ASSERT_EQ(paths_of(search.q).size(), places.size() - 1);
    ASSERT_EQ(places.back().first_chunk, how.chunks);
    std::size_t number = 1;
    std::uint64_t next = 0;
    for (std::uint64_t chunk = 0; chunk < how.chunks; ++chunk) {
      while (places[number + 1].first_chunk <= chunk) ++number;
      const std::uint64_t row = (chunk - places[number].first_chunk) * how.rows;
      ASSERT_LT(row, places[number].count);
      ASSERT_EQ(places[number].first_index + row, next);
      next += std::min<std::uint64_t>(places[number].count - row, how.rows);
    }
    std::uint64_t vectors = 0;
    for (const vectors_file& d : search.q.databases) vectors += d.count;
    EXPECT_EQ(next, vectors);
  }
}

TEST_P(search_plan, half_of_the_cache_has_room_for_what_is_mapped) {
  for (int i = 0; i < 3000; ++i) {
    const random_search search(random_);
    const plan how(search.mount, search.q);
    const std::uint64_t half = search.mount.cache_bytes / search.mount.page_bytes / 2;
    std::uint64_t stride = search.q.dimensions * sizeof(float);
    for (const vectors_file& d : search.q.databases) stride = std::max(stride, d.stride);
    ASSERT_GE(how.rows, 1u);
    ASSERT_LE(how.rows, tile::side);
    ASSERT_GE(how.blocks, 1u);
    ASSERT_LE(how.blocks, 2 * search.mount.multiprocessors);
    const std::uint64_t mapped = how.part_columns != search.q.dimensions
                                     ? 2 * how.rows
                                     : how.rows * stride / search.mount.page_bytes + 2;
    EXPECT_LE(how.blocks * mapped, half);
  }
}

TEST_P(search_plan, half_of_the_cache_has_room_for_what_is_brought_ahead) {
  for (int i = 0; i < 3000; ++i) {
    const random_search search(random_);
    const plan how(search.mount, search.q);
    if (how.ahead == 0 || !how.advises) continue;
    std::uint64_t stride = search.q.dimensions * sizeof(float);
    for (const vectors_file& d : search.q.databases) stride = std::max(stride, d.stride);
    const std::uint64_t half = search.mount.cache_bytes / search.mount.page_bytes / 2;
    const std::uint64_t chunks = (how.ahead + 2) * std::uint64_t{how.unit} + how.blocks / how.tiles;
    EXPECT_LE(chunks * (how.rows * stride / search.mount.page_bytes + 2), half);
    EXPECT_LE(how.early, how.ahead);
  }
}

// The first chunk is brought while the queries are packed.
TEST_P(search_plan, each_chunk_is_brought_once_by_one_that_is_not_behind_it) {
  for (int i = 0; i < 300; ++i) {
    const random_search search(random_);
    const plan how(search.mount, search.q);
    const std::uint64_t chunks = 3000;
    std::vector<int> times(chunks);
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
      for (const plan::chunk_range& s : {how.brought_at_first(chunk), how.brought_ahead(chunk)}) {
        for (std::uint64_t c = s.begin; c < s.end; ++c) {
          ASSERT_GE(c, chunk);
          ASSERT_LT(c, chunk + (how.ahead + 2) * std::uint64_t{how.unit});
          if (c < chunks) ++times[c];
        }
      }
    }
    times[0] += 1;
    EXPECT_EQ(times, std::vector<int>(chunks, 1)) << how.unit << " " << how.ahead;
  }
}

INSTANTIATE_TEST_SUITE_P(seed, search_plan, ::testing::ValuesIn(testing::seeds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace gpufs::search

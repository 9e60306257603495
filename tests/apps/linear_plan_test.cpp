// How matvec() and matmul() cut their work: random sizes, offsets and caches, whose pages and
// numbers are counted one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "linear/matmul_plan.hpp"
#include "linear/matvec_plan.hpp"
#include "support/seeds.hpp"

namespace gpufs::testing {
namespace {

using linear::array_file, linear::element;

class random_sizes {
 public:
  explicit random_sizes(unsigned seed) : bits_(seed) {}
  std::uint64_t below(std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(bits_);
  }
  // As many small ones as large ones.
  std::uint64_t up_to(std::uint64_t most) {
    return std::min(most, 1 + below(std::uint64_t{1} << below(21)));
  }
  job::mount_facts facts() {
    const std::uint64_t page_bytes = std::uint64_t{512} << below(13);
    return {page_bytes, page_bytes * up_to(1 << 20), static_cast<std::uint32_t>(up_to(200)),
            below(4) == 0, below(2) << below(25)};
  }
  array_file file(element type) {
    return {"", (below(2) == 0 ? 128 : below(10'000)) * linear::bytes_of(type), type};
  }

 private:
  std::mt19937 bits_;
};

constexpr int plans = testing::is_sanitized ? 400 : 1200;
constexpr std::uint64_t bulk = 8 << 20;

TEST(MatvecPlan, EachNumberIsSummedUpOnceInAPlaceOfItsOwn) {
  random_sizes random(1);
  int cut = 0, whole = 0;
  for (int n = 0; n < plans; ++n) {
    const element type = random.below(2) == 0 ? element::float32 : element::bfloat16;
    const std::uint64_t rows = random.up_to(1 << 20), columns = random.up_to(1 << 20);
    const job::mount_facts facts = random.facts();
    if (rows * columns > (1 << 22) || rows * columns / facts.page_bytes > 4096) continue;
    const linear::matvec_plan plan({random.file(type), rows, columns, random.file(type), "", 4},
                                   facts);
    (plan.shares_of_group > 1 ? cut : whole)++;
    ASSERT_GE(plan.blocks, 1u);
    ASSERT_LE(plan.blocks, facts.multiprocessors);
    std::uint64_t number = 0,
                  pages_of_row = 0;  // the next number, and in how many pages its row was so far
    std::vector<bool> used;
    for (std::uint64_t i = 0; i < plan.shares(); ++i) {
      const auto share = plan.share_of(i);
      ASSERT_LT(share.set, plan.sets);
      ASSERT_EQ(share.first_sum, share.set * plan.floats_of_set());
      ASSERT_EQ(share.first_product, share.first_sum + plan.sums_of_set());
      ASSERT_LE(share.first_product + (share.end_row - share.first_row), plan.sums());
      ASSERT_EQ(share.set, plan.shares_of_group > 1 ? i / plan.shares_of_group : i % plan.blocks);
      ASSERT_EQ(share.product_place, 4 + 4 * share.first_row);
      ASSERT_EQ(share.product_bytes, 4 * (share.end_row - share.first_row));
      if (i % plan.shares_of_group == 0) used.assign(plan.sums_of_set(), false);
      for (std::uint64_t page = share.first_page; page < share.end_page; ++page) {
        const auto [first, end, first_row, end_row] = plan.numbers_of(share, page);
        ASSERT_EQ(first, number);
        ASSERT_EQ(first_row, first / columns);
        ASSERT_EQ(end_row, (end - 1) / columns + 1);
        ASSERT_LT(first, end);
        ASSERT_EQ((plan.offset + first * linear::bytes_of(type)) / facts.page_bytes, page);
        ASSERT_EQ((plan.offset + end * linear::bytes_of(type) - 1) / facts.page_bytes, page);
        ASSERT_GE(first, share.first_row * columns);
        ASSERT_LE(end, share.end_row * columns);
        for (std::uint64_t row = first_row; row < end_row; ++row) {
          ASSERT_GE(page, plan.first_page(row));
          ASSERT_LT(page, plan.end_page(row));
          const std::uint64_t place = share.sum_of(row, page) - share.first_sum;
          ASSERT_LT(place, used.size());
          ASSERT_FALSE(used[place]);
          used[place] = true;
          ++pages_of_row;
          if (end >= (row + 1) * columns) {
            ASSERT_EQ(std::exchange(pages_of_row, 0), plan.end_page(row) - plan.first_page(row));
          }
        }
        number = end;
      }
    }
    ASSERT_EQ(number, rows * columns);
  }
  EXPECT_GT(cut, plans / 40);
  EXPECT_GT(whole, plans / 40);
}

TEST(MatvecPlan, WhatIsMappedAndAskedForHasRoomInHalfOfTheCache) {
  random_sizes random(2);
  for (int n = 0; n < plans; ++n) {
    const element type = random.below(2) == 0 ? element::float32 : element::bfloat16;
    const job::mount_facts facts = random.facts();
    const linear::matvec_plan plan(
        {random.file(type), random.up_to(1 << 20), random.up_to(1 << 20), random.file(type), "", 4},
        facts);
    const std::uint64_t half = facts.cache_bytes / facts.page_bytes / 2;
    if (half < plan.warps) continue;
    ASSERT_LE(plan.blocks * plan.warps, half);
    std::uint64_t most = 0;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(plan.shares(), 1000); ++i)
      most = std::max(most, plan.share_of(i).end_page - plan.share_of(i).first_page);
    ASSERT_LE(plan.blocks * most, half);
  }
}

linear::matmul_plan matmul_plan_of(random_sizes& random, const job::mount_facts& facts,
                                   std::uint64_t most_depth) {
  const element type = random.below(2) == 0 ? element::float32 : element::bfloat16;
  std::uint64_t depth = random.up_to(most_depth);
  const std::uint64_t page = facts.page_bytes / linear::bytes_of(type);
  if (random.below(3) == 0)
    depth = (depth / page + 1) * page;  // rows that begin at the same place in a page
  return {{random.file(type), random.up_to(10'000), depth, random.file(type), random.up_to(10'000),
           "", 4},
          facts};
}

TEST(MatmulPlan, EachTileIsMadeOnceAndEachRowIsBroughtBeforeItsBand) {
  random_sizes random(3);
  for (int n = 0; n < plans; ++n) {
    const linear::matmul_plan plan = matmul_plan_of(random, random.facts(), 100'000);
    if (plan.tiles() > 20'000) continue;
    std::set<std::pair<std::uint64_t, std::uint64_t>> made;
    std::set<std::pair<std::uint64_t, std::uint64_t>> brought;  // shares of the first band's rows
    std::map<std::uint64_t, std::uint64_t> first_shares;  // how many there are of each tile's rows
    std::uint64_t band_end = 0,
                  next_share = 0;  // rows that have been asked for, and shares of the next ones
    for (std::uint64_t i = 0; i < plan.tiles(); ++i) {
      const auto tile = plan.tile_at(i);
      ASSERT_TRUE(made.emplace(tile.row, tile.column_tile).second);
      ASSERT_EQ(tile.row % plan.cut.rows, 0u);
      ASSERT_LT(tile.column_tile, plan.across());
      ASSERT_EQ(tile.count, std::min<std::uint64_t>(plan.cut.rows, plan.rows - tile.row));
      if (tile.first.count != 0) {
        ASSERT_LT(tile.row, std::uint64_t{plan.band_tiles} * plan.cut.rows)
            << "the others are the band's before";
        ASSERT_TRUE(brought.emplace(tile.first.row, tile.first.share).second);
        ASSERT_EQ(tile.first.row, tile.row);
        ASSERT_EQ(tile.first.count, tile.count);
        ASSERT_LT(tile.first.share, tile.first.shares);
        first_shares[tile.first.row] = tile.first.shares;
      }
      if (i == 0) band_end = tile.next.row;
      if (tile.next.row != band_end) {
        ASSERT_EQ(tile.next.row,
                  std::min(plan.rows, band_end + std::uint64_t{plan.band_tiles} * plan.cut.rows));
        band_end = tile.next.row;
        next_share = 0;
      }
      ASSERT_LT(tile.row, band_end);
      ASSERT_EQ(tile.next.count,
                std::min(plan.rows - band_end, std::uint64_t{plan.band_tiles} * plan.cut.rows));
      ASSERT_EQ(tile.next.share, next_share++);
      ASSERT_LT(tile.next.share, tile.next.shares);
      const bool ends_band = i + 1 == plan.tiles() || plan.tile_at(i + 1).next.row != band_end;
      ASSERT_EQ(next_share == tile.next.shares, ends_band);
    }
    ASSERT_EQ(made.size(), plan.tiles());
    std::uint64_t shares = 0;
    for (const auto& [row, count] : first_shares) shares += count;
    ASSERT_EQ(brought.size(), shares);
    ASSERT_EQ(first_shares.size(), std::min<std::uint64_t>(plan.down(), plan.band_tiles));
  }
}

// Of the pages in which a tile's rows lie, those that are mapped together.
std::uint64_t pages_mapped(const linear::matmul_plan& plan, std::uint64_t row) {
  const std::uint64_t number_bytes = linear::bytes_of(plan.type), page_bytes = plan.cut.page_bytes;
  const std::uint64_t end = std::min<std::uint64_t>(plan.rows, row + plan.cut.rows);
  const bool are_pages =
      plan.cut.part_columns != plan.depth &&
      tile::parts_are_pages(plan.left_offset, plan.left_row_bytes(), page_bytes, number_bytes);
  std::uint64_t most = 0, part = plan.cut.part_columns;
  if (are_pages) part -= plan.left_offset % page_bytes / number_bytes;
  for (std::uint64_t column = 0; column < plan.depth;
       column += std::exchange(part, plan.cut.part_columns)) {
    const std::uint64_t columns = std::min<std::uint64_t>(part, plan.depth - column);
    std::set<std::uint64_t> pages;
    for (std::uint64_t r = row; r < end; ++r) {
      const std::uint64_t begin = plan.left_place(r) + column * number_bytes;
      pages.insert(begin / page_bytes);
      pages.insert((begin + columns * number_bytes - 1) / page_bytes);
    }
    most = std::max<std::uint64_t>(most, pages.size());
  }
  return most;
}

TEST(MatmulPlan, WhatIsMappedHasRoomInHalfOfTheCache) {
  random_sizes random(4);
  int in_parts = 0, in_pages = 0, whole = 0;
  for (int n = 0; n < plans; ++n) {
    const job::mount_facts facts = random.facts();
    const linear::matmul_plan plan = matmul_plan_of(random, facts, 1 << 20);
    ASSERT_GE(plan.cut.blocks, 1u);
    ASSERT_GE(plan.cut.rows, 1u);
    if (plan.cut.part_columns != plan.depth)
      (tile::parts_are_pages(plan.left_offset, plan.left_row_bytes(), facts.page_bytes,
                             linear::bytes_of(plan.type))
           ? in_pages
           : in_parts)++;
    std::uint64_t most = 0;
    for (int k = 0; k < 4; ++k)
      most = std::max(most, pages_mapped(plan, random.below(plan.down()) * plan.cut.rows));
    const std::uint64_t half = facts.cache_bytes / facts.page_bytes / 2;
    const std::uint64_t all = (plan.left_place(plan.rows) - 1) / facts.page_bytes -
                              plan.left_offset / facts.page_bytes + 1;
    whole += all <= half && plan.cut.blocks * most > half ? 1 : 0;
    ASSERT_TRUE(std::min(plan.cut.blocks * most, all) <= half ||
                (plan.cut.blocks == 1 && plan.cut.rows == 1));
  }
  EXPECT_GT(whole, plans / 40);
  EXPECT_GT(in_parts, plans / 40);
  EXPECT_GT(in_pages, plans / 40);
}

TEST(MatmulPlan, LongRowsFillTheirTiles) {
  const auto plan_of = [](std::uint64_t offset, std::uint64_t cache_bytes) {
    return linear::matmul_plan({{"a", offset}, 8192, 65'536, {"b"}, 1024, "c"},
                               {65'536, cache_bytes, 132, false, bulk});
  };
  const std::uint64_t gib = std::uint64_t{1} << 30;
  for (const std::uint64_t offset : {0, 128}) {
    EXPECT_EQ(plan_of(offset, 4 * gib).cut.rows, 128u);
    EXPECT_EQ(plan_of(offset, 4 * gib).cut.blocks, 256u);
    EXPECT_EQ(plan_of(offset, 2 * gib).cut.rows, 128u);
    EXPECT_EQ(plan_of(offset, 2 * gib).cut.blocks, 128u);
    EXPECT_EQ(plan_of(offset, 1 * gib).cut.rows, 64u);
    EXPECT_EQ(plan_of(offset, 1 * gib).cut.blocks, 128u);
  }
  EXPECT_EQ(plan_of(4, 4 * gib).cut.rows, 128u);  // parts of rows in two pages each
  EXPECT_EQ(plan_of(4, 4 * gib).cut.blocks, 128u);
}

TEST(MatmulPlan, AMatrixThatHasRoomIsNotCut) {
  const std::uint64_t mib = std::uint64_t{1} << 20;
  const auto plan_of = [](std::uint64_t cache_bytes) {
    return linear::matmul_plan({{"a", 128}, 8192, 8192, {"b"}, 8192, "c"},
                               {65'536, cache_bytes, 132, false, bulk});
  };
  EXPECT_EQ(plan_of(514 * mib).cut.rows, 128u);
  EXPECT_EQ(plan_of(514 * mib).cut.blocks, 264u);
  EXPECT_LT(plan_of(512 * mib).cut.rows,
            128u);  // the first rows and the last have pages in common with others
}

TEST(LinearPlans, WhatCannotBeIsRefused) {
  const job::mount_facts facts{65'536, std::uint64_t{1} << 32, 132, false, bulk};
  const auto refused = [](const auto& make) {
    try {
      make();
    } catch (const error& e) {
      return e.code().value();
    }
    return 0;
  };
  const array_file a{"a", 0, element::float32}, odd{"b", 2, element::float32},
      other{"b", 0, element::bfloat16};
  const auto matvec = [&](std::uint64_t rows, std::uint64_t columns, const array_file& x,
                          std::uint64_t at) {
    return refused([&] { (void)linear::matvec_plan({a, rows, columns, x, "y", at}, facts); });
  };
  const auto matmul = [&](std::uint64_t rows, std::uint64_t depth, std::uint64_t columns,
                          const array_file& b) {
    return refused([&] { (void)linear::matmul_plan({a, rows, depth, b, columns, "c"}, facts); });
  };
  EXPECT_EQ(matvec(3, 4, a, 4), 0);
  EXPECT_EQ(matvec(0, 4, a, 4), EINVAL);
  EXPECT_EQ(matvec(3, 0, a, 4), EINVAL);
  EXPECT_EQ(matvec(std::uint64_t{1} << 32, std::uint64_t{1} << 32, a, 4), EINVAL);
  EXPECT_EQ(matvec(3, 4, odd, 4), EINVAL);
  EXPECT_EQ(matvec(3, 4, other, 4), EINVAL);
  EXPECT_EQ(matvec(3, 4, a, 2), EINVAL);
  // Behind where files end, so that places would begin anew at 0.
  const std::uint64_t behind = ~std::uint64_t{0} - 4095;
  const array_file far{"a", behind, element::float32};
  EXPECT_EQ(matvec(3, 4, far, 4), EINVAL);
  EXPECT_EQ(matvec(3, 4, a, behind), EINVAL);
  EXPECT_EQ(refused([&] { (void)linear::matvec_plan({far, 1, 5000, a, "y"}, facts); }), EINVAL);
  EXPECT_EQ(matmul(3, 4, 5, far), EINVAL);
  EXPECT_EQ(refused([&] { (void)linear::matmul_plan({far, 3, 4, a, 5, "c"}, facts); }), EINVAL);
  EXPECT_EQ(refused([&] { (void)linear::matmul_plan({a, 3, 4, a, 5, "c", behind}, facts); }),
            EINVAL);
  EXPECT_EQ(matmul(3, 4, 5, a), 0);
  EXPECT_EQ(matmul(0, 4, 5, a), EINVAL);
  EXPECT_EQ(matmul(3, 0, 5, a), EINVAL);
  EXPECT_EQ(matmul(3, 4, 0, a), EINVAL);
  EXPECT_EQ(matmul(3, 4, 5, odd), EINVAL);
  EXPECT_EQ(matmul(1, 1, std::uint64_t{1} << 42, a), ENOMEM);
}

}  // namespace
}  // namespace gpufs::testing

// How a matrix is divided for the kernel of matvec() (linear.hpp).
#pragma once

#include <algorithm>
#include <bit>

#include "common/arithmetic.cuh"
#include "job/mount_facts.hpp"
#include "linear/checks.hpp"

namespace gpufs::linear {

// Rows form groups whose sums are written together. A group lies in some pages of the file, and
// blocks take shares of these pages. If a single row does not exceed one share, the share is the
// whole group. A warp maps one page at a time, and keeps a sum for each row in it.
//
// Invariants: what blocks map and prefetch at a time fits into half of the cache, if eight pages
// do. Each number of the matrix is in one share.
struct matvec_plan {
  static constexpr std::uint32_t warps = 8;  // in a block
  // The size of a prefetch if there is no bulk path.
  static constexpr std::uint64_t run_bytes = std::uint64_t{8} << 20;
  static constexpr std::uint32_t bytes_at_a_time = 64;  // that a thread has in flight

  element type;
  std::uint64_t offset, out_offset, rows, columns, row_bytes, page_bytes;
  std::uint32_t page_shift;
  std::uint64_t group_rows, share_pages, shares_of_group;
  std::uint32_t blocks;
  // Sets of sums: one for each block, or, if several blocks sum up a row, one for each group.
  std::uint64_t sets;
  bool sends;  // whether a group's sums fill whole pages, which then go to the file at once
  std::uint32_t row_team,
      sums_team;  // Members of a warp that multiply a row together, and that add up its sums.

  // Throws gpufs::error for what matvec() rejects.
  matvec_plan(const matvec_files& f, const job::mount_facts& m)
      : type(f.matrix.type), offset(f.matrix.offset), out_offset(f.out_offset), rows(f.rows),
        columns(f.columns), row_bytes(columns * bytes_of(type)), page_bytes(m.page_bytes),
        page_shift(static_cast<std::uint32_t>(std::countr_zero(m.page_bytes))) {
    check_types(f.matrix, f.vector);
    check_matrix(rows, columns, bytes_of(type), offset);
    check_matrix(columns, 1, bytes_of(type), f.vector.offset);
    check_matrix(rows, 1, sizeof(float), out_offset);
    const std::uint64_t room = m.cache_bytes / page_bytes / 2;
    // One block for each multiprocessor: enough to keep the bus busy with large pieces.
    const std::uint64_t most_blocks = std::clamp<std::uint64_t>(room / warps, 1, m.multiprocessors);
    // Small enough that each block and each of its warps has work, even if the matrix is small.
    const std::uint64_t even =
        std::max<std::uint64_t>(ceiling(rows * row_bytes, page_bytes) / most_blocks, warps);
    const std::uint64_t most_pages =
        std::min({even + 1, ceiling(m.bulk_bytes != 0 ? m.bulk_bytes : run_bytes, page_bytes) + 1,
                  std::max<std::uint64_t>(room / most_blocks, 2)});
    group_rows = std::clamp<std::uint64_t>((most_pages - 1) * page_bytes / row_bytes, 1, rows);
    shares_of_group = ceiling(group_pages(), most_pages);
    share_pages = ceiling(group_pages(), shares_of_group);
    blocks = static_cast<std::uint32_t>(std::min(shares(), most_blocks));
    sets = shares_of_group > 1 ? groups() : blocks;
    sends = group_rows * sizeof(float) >= page_bytes;
    const auto team = [&](std::uint64_t parts) {
      return m.is_cpu
                 ? 1
                 : static_cast<std::uint32_t>(std::bit_ceil(std::min<std::uint64_t>(parts, 32)));
    };
    row_team = team(ceiling(row_bytes, bytes_at_a_time));
    sums_team = team(ceiling(row_bytes, page_bytes));
  }

  GPUFS_HD std::uint64_t groups() const { return ceiling(rows, group_rows); }
  GPUFS_HD std::uint64_t shares() const { return groups() * shares_of_group; }
  // The most pages of a group, wherever it begins.
  GPUFS_HD std::uint64_t group_pages() const {
    return ceiling(group_rows * row_bytes, page_bytes) + 1;
  }
  // Sums of a set. The sum of a row's numbers in one page has its own place: from one sum to the
  // next, the row, the page, or both advance.
  GPUFS_HD std::uint64_t sums_of_set() const { return group_rows + group_pages(); }
  // The same, plus one product for each row.
  GPUFS_HD std::uint64_t floats_of_set() const { return sums_of_set() + group_rows; }
  std::uint64_t sums() const { return sets * floats_of_set(); }
  GPUFS_HD std::uint64_t place_of(std::uint64_t row) const { return offset + row * row_bytes; }
  // The pages in which a row lies.
  GPUFS_HD std::uint64_t first_page(std::uint64_t row) const { return place_of(row) >> page_shift; }
  GPUFS_HD std::uint64_t end_page(std::uint64_t row) const {
    return ((place_of(row + 1) - 1) >> page_shift) + 1;
  }

  struct share {
    std::uint64_t set;  // the set of its group; below, where the set and its rows' products begin
    std::uint64_t first_sum, first_product;
    std::uint64_t first_row, end_row;    // rows of its group
    std::uint64_t group_page;            // the group's first page
    std::uint64_t first_page, end_page;  // pages of the share; none if the group lies in few pages
    std::uint64_t product_place, product_bytes;  // of the group, in the product's file
    GPUFS_HD std::uint64_t sum_of(std::uint64_t row, std::uint64_t page) const {
      return first_sum + (row - first_row) + (page - group_page);
    }
  };
  GPUFS_HD share share_of(std::uint64_t i) const {
    const std::uint64_t group = i / shares_of_group, set = group % sets;
    const std::uint64_t first = group * group_rows, end = least(first + group_rows, rows);
    const std::uint64_t page = first_page(first), all = end_page(end - 1);
    const std::uint64_t from = page + i % shares_of_group * share_pages,
                        floats = set * floats_of_set();
    return {set,
            floats,
            floats + sums_of_set(),
            first,
            end,
            page,
            least(from, all),
            least(from + share_pages, all),
            out_offset + first * sizeof(float),
            (end - first) * sizeof(float)};
  }

  // The numbers [first, end) of the matrix that one page has of a group, and their rows.
  struct numbers {
    std::uint64_t first, end, first_row, end_row;
  };
  GPUFS_HD numbers numbers_of(const share& of, std::uint64_t page) const {
    const std::uint64_t begin = most(page << page_shift, place_of(of.first_row));
    const std::uint64_t end = least((page + 1) << page_shift, place_of(of.end_row));
    const std::uint64_t first_number = (begin - offset) / bytes_of(type),
                        end_number = (end - offset) / bytes_of(type);
    return {first_number, end_number, first_number / columns, ceiling(end_number, columns)};
  }

  GPUFS_HD static std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }
  GPUFS_HD static std::uint64_t most(std::uint64_t a, std::uint64_t b) { return a < b ? b : a; }
};

}  // namespace gpufs::linear

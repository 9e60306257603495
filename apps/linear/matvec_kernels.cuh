// The kernel of matvec() (linear.hpp).
#pragma once

#include "job/files.cuh"
#include "linear/matvec_plan.hpp"
#include "tile/numbers.cuh"

namespace gpufs::linear {

// Returns a team member's part of the sum of `count` products. Several loads of the file's bytes
// are in flight. Members load single numbers, so adjacent members load adjacent numbers at any
// alignment.
template <class T>
GPUFS_HD float products(const T* a, const T* b, std::uint64_t count, std::uint32_t rank,
                        std::uint32_t members) {
  constexpr std::uint32_t at_once = matvec_plan::bytes_at_a_time / sizeof(T);
  float sums[4] = {};
  for (std::uint64_t i = rank; i < count; i += at_once * members) {
    T x[at_once] = {}, y[at_once] = {};
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < at_once; ++k)
      if (i + k * members < count) x[k] = a[i + k * members], y[k] = b[i + k * members];
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < at_once; ++k) sums[k % 4] += value_of(x[k]) * value_of(y[k]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Stores the sums of rows: for each row the sum of what the members of a team get from `part(row,
// rank in the team)`. Returns the sum of all parts of the calling member.
template <class Group, class Part>
GPUFS_HD float sum_by_teams(const Group& g, std::uint32_t members, std::uint64_t first,
                            std::uint64_t end, float* sums, const Part& part) {
  float made = 0;
  for (std::uint64_t row = first + g.rank() / members; row - g.rank() / members < end;
       row += g.size() / members) {
    const float own = row < end ? part(row, g.rank() % members) : 0,
                sum = sum_of(block_group::warp(), own, members);
    if (row < end && g.rank() % members == 0) sums[row - first] = sum;
    made += own;
  }
  return made;
}

// Multiplies. A block works share by share, and prefetches each whole share at its start. The block
// that completes the last share of a group writes the group's sums.
template <class T>
struct multiply_rows : roomy_shape {
  matvec_plan plan;
  job::file matrix, product;
  const void* vector;
  float* sums;
  atomic_word<std::uint32_t>* summed;  // by set of sums: the number of completed shares

  job::launch_plan shape() const { return {plan.blocks, 0}; }
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const job::opened from = matrix.open_to_read(g, fs), to = product.open_to_write(g, fs);
    for (std::uint64_t i = g.grid_rank(); i < plan.shares() && job::goes_on(g, from, to);
         i += g.grid_size()) {
      const matvec_plan::share own = plan.share_of(i);
      from.bring(g, (own.end_page - own.first_page) * plan.page_bytes,
                 own.first_page * plan.page_bytes);
      for (std::uint64_t page = own.first_page + g.warp_rank(); page < own.end_page;
           page += g.warp_count())
        multiply(g.warp(), from, own, page);
      if (job::is_last(g, summed[own.set], plan.shares_of_group)) write(g, to, own);
    }
    from.close(g);
    to.close(g);
  }

 private:
  GPUFS_HD void multiply(const warp_group& warp, const job::opened& in,
                         const matvec_plan::share& own, std::uint64_t page) const {
    const auto [first, end, row, end_row] = plan.numbers_of(own, page);
    const mapping m = in.map(warp, (end - first) * sizeof(T), plan.offset + first * sizeof(T));
    if (m.bytes == 0) return;
    const auto part = [&](std::uint64_t of, std::uint32_t rank) {
      const std::uint64_t begin = of * plan.columns, from = plan.most(begin, first);
      return products(reinterpret_cast<const T*>(m.data) + (from - first),
                      static_cast<const T*>(vector) + (from - begin),
                      plan.least(begin + plan.columns, end) - from, rank, plan.row_team);
    };
    in.unmap(warp, m,
             sum_by_teams(warp, plan.row_team, row, end_row, sums + own.sum_of(row, page), part));
  }

  // Adds up the sums of a group's rows over all pages, and writes them.
  GPUFS_HD void write(const block_group& g, const job::opened& to,
                      const matvec_plan::share& own) const {
    const auto part = [&](std::uint64_t row, std::uint32_t rank) {
      float sum = 0;
      for (std::uint64_t page = plan.first_page(row) + rank; page < plan.end_page(row);
           page += plan.sums_team)
        sum += sums[own.sum_of(row, page)];
      return sum;
    };
    (void)sum_by_teams(g, plan.sums_team, own.first_row, own.end_row, sums + own.first_product,
                       part);
    g.sync();
    to.write_all(g, sums + own.first_product, own.product_bytes, own.product_place);
    // while other blocks multiply
    if (plan.sends) to.send(g, own.product_bytes, own.product_place);
  }
};

}  // namespace gpufs::linear

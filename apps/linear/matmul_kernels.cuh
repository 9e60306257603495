// The kernels of matmul() (linear.hpp).
#pragma once

#include "job/job.hpp"
#include "linear/matmul_plan.hpp"
#include "tile/rows.cuh"

namespace gpufs::linear {

// Packs the right matrix for the matrix units. Its columns become the rows of a panel. A block
// takes as many rows of the matrix at a time as a slice is deep.
template <class T>
struct pack_columns : tuned_shape {
  matmul_plan plan;
  job::file right;
  char* slices;

  // Numbers of a row in one read: so many that the cost of a call does not matter, and so few that
  // three blocks fit.
  static constexpr std::uint32_t numbers_at_once = 2048 / sizeof(T);
  static_assert(numbers_at_once % tile::side == 0, "whole tiles");

  job::launch_plan shape() const {
    return {plan.pack_blocks, sizeof(T) * tile::depth * numbers_at_once};
  }
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const job::opened from = right.open_to_read(g, fs);
    for (std::uint64_t i = g.grid_rank(); i < plan.slices_of_row() && job::goes_on(g, from);
         i += g.grid_size()) {
      const std::uint64_t first = i * tile::depth, left = plan.depth - first,
                          end = left < tile::depth ? plan.depth : first + tile::depth;
      from.bring(g, plan.right_place(end, 0) - plan.right_place(first, 0),
                 plan.right_place(first, 0));
      for (std::uint64_t column = 0; column < plan.columns; column += numbers_at_once)
        pack(g, from, first, static_cast<std::uint32_t>(end - first), column);
    }
    from.close(g);
  }

 private:
  GPUFS_HD void pack(const block_group& g, const job::opened& from, std::uint64_t row,
                     std::uint32_t row_count, std::uint64_t column) const {
    auto* const numbers = reinterpret_cast<T*>(block_group::scratch());
    const std::uint64_t left = plan.columns - column;
    const auto width = static_cast<std::uint32_t>(left < numbers_at_once ? left : numbers_at_once);
    for (std::uint32_t k = g.warp_rank(); k < row_count; k += g.warp_count())
      (void)from.read_all(g.warp(), numbers + k * numbers_at_once, width * sizeof(T),
                          plan.right_place(row + k, column));
    g.sync();
    for (std::uint32_t at = 0; at < width; at += tile::side) {
      char* const slice =
          slices + tile::panel::place<parts_of<T>>((column + at) / tile::side, row / tile::depth,
                                                   plan.slices_of_row());
      tile::pack_columns<parts_of<T>>(g, numbers + at, numbers_at_once, row_count, width - at,
                                      slice);
    }
    g.sync();  // before the next numbers overwrite these
  }
};

// Multiplies rows of the left matrix with the packed columns, tile by tile. A block maps the rows,
// and writes the tile into the product's file.
template <class T>
struct multiply_tiles : roomy_shape {
  static_assert(block_threads_max == tile::threads, "each has its sums");
  static constexpr std::uint32_t pitch =
      tile::side + 4;  // of the product in scratch memory: rows begin in different banks
  struct memory {
    union {
      char stages[tile::stages_bytes<parts_of<T>>];
      float product[tile::side * pitch];
    };
    tile::row_table rows;
  };

  matmul_plan plan;
  job::file left, out;
  const char* slices;
  atomic_word<std::uint64_t>* next;
  atomic_word<std::uint64_t>* done;  // by tile row: the number of tiles that are written

  job::launch_plan shape() const {
    return {plan.cut.blocks, tile::scratch_bytes<memory>(plan.is_cpu)};
  }
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const job::opened from = left.open_to_read(g, fs), to = out.open_to_write(g, fs);
    while (job::goes_on(g, from, to)) {
      std::uint64_t i = 0;
      if (g.is_leader()) i = next->fetch_add_relaxed(1);
      i = g.broadcast(i);
      if (i >= plan.tiles()) break;
      const matmul_plan::tile_of_product own = plan.tile_at(i);
      if (plan.brings) {
        bring(g, from, own.first);
        bring(g, from, own.next);
      }
      if (!multiply(g, fs, from, own)) break;
      write(g, to, own);
      // The last tile of these rows: they go to the file while other tiles are computed.
      if (job::is_last(g, done[own.row / plan.cut.rows], plan.across()))
        to.send(g, own.count * plan.columns * sizeof(float), plan.out_place(own.row, 0));
    }
    from.close(g);
    to.close(g);
  }

 private:
  // Prefetches a share of rows, in whole pages.
  GPUFS_HD void bring(const block_group& g, const job::opened& from,
                      const matmul_plan::rows_to_bring& of) const {
    const std::uint64_t bytes = of.count * plan.left_row_bytes(), page_bytes = plan.cut.page_bytes;
    const std::uint64_t part = ceiling(ceiling(bytes, of.shares), page_bytes) * page_bytes,
                        begin = of.share * part;
    if (begin < bytes)
      from.bring(g, bytes - begin < part ? bytes - begin : part, plan.left_place(of.row) + begin);
  }

  // Stores the product into scratch memory. Returns false after an error.
  GPUFS_HD bool multiply(const block_group& g, const mount_ref& fs, const job::opened& from,
                         const matmul_plan::tile_of_product& of) const {
    auto& own = tile::slice_memory<memory>();
    tile::product<parts_of<T>> sums(reinterpret_cast<char*>(&own + 1));
    const tile::rows_of_file rows{
        from.descriptor(), plan.left_place(of.row), plan.left_row_bytes(), of.count,
        plan.depth,        plan.cut.part_columns};
    const tile::panel right{slices, static_cast<std::uint32_t>(plan.slices_of_row())};
    const std::int32_t wrong = tile::add_mapped_product<parts_of<T>, T>(
        g, fs, sums, own.stages, own.rows, rows, right, of.column_tile,
        [](std::uint32_t, std::uint32_t, const auto&) {});
    if (wrong != 0 && g.is_leader()) from.tell(wrong);
    sums.each(
        [&](std::uint32_t m, std::uint32_t n, float sum) { own.product[m * pitch + n] = sum; });
    g.sync();
    return wrong == 0;
  }

  GPUFS_HD void write(const block_group& g, const job::opened& to,
                      const matmul_plan::tile_of_product& of) const {
    const auto& own = tile::slice_memory<memory>();
    const std::uint64_t column = of.column_tile * tile::side, width = plan.columns - column;
    for (std::uint32_t m = g.warp_rank(); m < of.count; m += g.warp_count())
      to.write_all(g.warp(), own.product + m * pitch,
                   (width < tile::side ? width : tile::side) * sizeof(float),
                   plan.out_place(of.row + m, column));
    g.sync();  // before the next product
  }
};

// Launch the kernel. That of float32 numbers has a source of its own, because it needs all
// optimizations (docs/decisions/build.md).
void start(const job::job& work, const multiply_tiles<bfloat16>& kernel);
void start(const job::job& work, const multiply_tiles<float>& kernel);

}  // namespace gpufs::linear

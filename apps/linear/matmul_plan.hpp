// How a product of matrices is divided for the kernels of matmul() (linear.hpp).
#pragma once

#include <cerrno>

#include "common/tuned_shape.hpp"
#include "linear/checks.hpp"
#include "tile/cut.hpp"
#include "tile/rows.cuh"

namespace gpufs::linear {

// A float32 number is multiplied as three bfloat16 parts.
template <class T>
inline constexpr int parts_of = sizeof(T) == sizeof(float) ? 3 : 1;

// A tile of the product is made of some rows and some columns. All tiles of a band of rows come
// before the next band. Meanwhile the blocks prefetch the rows of the next band, a share with each
// tile. In a band, tiles that lie near each other come together, so that the second-level cache
// holds what they share: groups of column tiles, with all of the band's rows.
//
// Invariants: each number of the product is in one tile. What blocks map at a time fits into half
// of the cache, if one block's part does. Two bands fit too, if bands are prefetched.
struct matmul_plan {
  static constexpr std::uint32_t group_tiles = 16;
  static constexpr std::uint64_t first_share_bytes = std::uint64_t{4} << 20;

  element type;
  std::uint64_t left_offset, right_offset, out_offset, rows, depth, columns;
  tile::cut cut;  // of the left matrix
  std::uint32_t band_tiles = 16;
  bool brings;  // whether the cache has room for the next band besides the current band
  bool is_cpu;
  std::uint32_t pack_blocks;

  // Throws gpufs::error for what matmul() rejects.
  matmul_plan(const matmul_files& f, const job::mount_facts& m)
      : type(checked(f).left.type), left_offset(f.left.offset), right_offset(f.right.offset),
        out_offset(f.out_offset), rows(f.rows), depth(f.depth), columns(f.columns),
        cut(m, m.multiprocessors * roomy_shape::blocks_per_multiprocessor,
            {depth * bytes_of(type), depth, bytes_of(type), rows, left_offset}),
        is_cpu(m.is_cpu) {
    constexpr std::uint64_t most =
        limits::file_bytes_max / (tile::slice_bytes * 3);  // more than any GPU memory
    if (slices_of_row() > most / across()) throw error(ENOMEM, "matmul", f.right.path);
    const auto two_bands = [&] {
      return 2 * cut.pages_of(std::uint64_t{band_tiles} * cut.rows * left_row_bytes());
    };
    while (two_bands() > cut.pages && band_tiles > 1) band_tiles /= 2;
    brings = two_bands() <= cut.pages;
    cut.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(cut.blocks, tiles()));
    const std::uint32_t most_packing = m.multiprocessors * tuned_shape::blocks_per_multiprocessor;
    pack_blocks =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(slices_of_row(), most_packing));
  }

  GPUFS_HD std::uint64_t left_row_bytes() const { return depth * bytes_of(type); }
  GPUFS_HD std::uint64_t across() const { return ceiling(columns, tile::side); }
  GPUFS_HD std::uint64_t down() const { return ceiling(rows, cut.rows); }
  GPUFS_HD std::uint64_t tiles() const { return across() * down(); }
  GPUFS_HD std::uint64_t left_place(std::uint64_t row) const {
    return left_offset + row * left_row_bytes();
  }
  GPUFS_HD std::uint64_t right_place(std::uint64_t row, std::uint64_t column) const {
    return right_offset + (row * columns + column) * bytes_of(type);
  }
  GPUFS_HD std::uint64_t out_place(std::uint64_t row, std::uint64_t column) const {
    return out_offset + (row * columns + column) * sizeof(float);
  }
  GPUFS_HD std::uint64_t slices_of_row() const { return tile::panel::slices_in(depth); }
  std::uint64_t panel_bytes() const {
    return tile::panel::bytes(columns, depth,
                              type == element::float32 ? parts_of<float> : parts_of<bfloat16>);
  }

  // Rows of the left matrix to prefetch: one share of `shares`.
  struct rows_to_bring {
    std::uint64_t row, count, share, shares;
  };
  struct tile_of_product {
    std::uint64_t row, column_tile;
    std::uint32_t count;  // number of the tile's rows
    // The tile's own rows, in the first band, where no block has prefetched them: the first
    // tiles of the band prefetch a share each.
    rows_to_bring first;
    rows_to_bring next;  // of the next band; none after the last band
  };
  GPUFS_HD tile_of_product tile_at(std::uint64_t i) const {
    const std::uint64_t band = i / (across() * band_tiles), in_band = i % (across() * band_tiles);
    const std::uint64_t first = band * band_tiles, height = least(down() - first, band_tiles);
    const std::uint64_t group = in_band / (height * group_tiles),
                        in_group = in_band % (height * group_tiles);
    const std::uint64_t width = least(across() - group * group_tiles, group_tiles);
    const std::uint64_t row = (first + in_group / width) * cut.rows,
                        next = least((first + height) * cut.rows, rows);
    const std::uint64_t column_tile = group * group_tiles + in_group % width,
                        count = least(rows - row, cut.rows);
    const std::uint64_t shares = least(ceiling(count * left_row_bytes(), first_share_bytes), width);
    return {row,
            column_tile,
            static_cast<std::uint32_t>(count),
            {row, band == 0 && column_tile < shares ? count : 0, column_tile, shares},
            {next, least(rows - next, std::uint64_t{band_tiles} * cut.rows), in_band,
             across() * height}};
  }

 private:
  static const matmul_files& checked(const matmul_files& f) {
    check_types(f.left, f.right);
    check_matrix(f.rows, f.depth, bytes_of(f.left.type), f.left.offset);
    check_matrix(f.depth, f.columns, bytes_of(f.left.type), f.right.offset);
    check_matrix(f.rows, f.columns, sizeof(float), f.out_offset);
    return f;
  }
  GPUFS_HD static std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }
};

}  // namespace gpufs::linear

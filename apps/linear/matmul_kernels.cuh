// The kernels of matmul() (linear.hpp).
#pragma once

#include "job/files.cuh"
#include "tile/rows.cuh"

namespace gpufs::linear {

// Packs the right matrix for the matrix units, its columns as a panel's rows. A block takes as many of its rows as a slice is deep.
template <class T, int Parts>
struct pack_columns : tuned_shape {
  static constexpr std::size_t scratch_bytes = sizeof(T) * tile::depth * tile::side;
  const char* path;
  std::uint32_t file;
  std::uint64_t offset, rows, columns;
  char* slices;
  job::failure failed;

  GPUFS_HD pack_columns(const char* p, std::uint32_t f, std::uint64_t o, std::uint64_t r, std::uint64_t c, char* s,
                        job::failure w)
      : path(p), file(f), offset(o), rows(r), columns(c), slices(s), failed(w) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const std::int32_t fd = job::open_to_read(g, fs, path, file, failed);
    if (fd < 0) return;
    job::by_turns(rows, tile::depth, [&](std::uint64_t first, std::uint64_t end) {
      if (g.all(failed.told())) return;  // each call might wait for its timeout
      const std::uint64_t row_bytes = columns * sizeof(T);
      (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(offset + first * row_bytes), (end - first) * row_bytes,
                     POSIX_FADV_WILLNEED);
      for (std::uint64_t column = 0; column < columns; column += tile::side)
        pack(g, fs, fd, first, static_cast<std::uint32_t>(end - first), column);
    });
    (void)gclose(g, fs, fd);  // of a file that is only read
  }

 private:
  GPUFS_HD void pack(const block_group& g, const mount_ref& fs, std::int32_t fd, std::uint64_t row,
                     std::uint32_t row_count, std::uint64_t column) const {
    const warp_group warp = g.warp();
    auto* const numbers = reinterpret_cast<T*>(block_group::scratch());
    const auto width = static_cast<std::uint32_t>(columns - column < tile::side ? columns - column : tile::side);
    for (std::uint32_t k = g.warp_rank(); k < row_count; k += g.warp_count())
      (void)job::read_all(warp, fs, fd, file, failed, reinterpret_cast<char*>(numbers + k * tile::side),
                          width * sizeof(T), offset + ((row + k) * columns + column) * sizeof(T));
    g.sync();
    tile::pack_columns<Parts>(
        g, numbers, row_count, width,
        slices + tile::panel::place<Parts>(column / tile::side, row / tile::depth, tile::panel::slices_in(rows)));
    g.sync();  // before the next numbers overwrite these
  }
};

// Multiplies rows of the left matrix with the packed columns, tile by tile: some rows with some columns. A block maps the rows, and writes the
// tile into the product's file. All tiles of a band of rows come before the next band, whose rows are brought meanwhile: by each block its
// share. In a band, tiles that lie near each other are computed at the same time, so that what they share is in the second-level cache.
template <class T, int Parts>
struct multiply_tiles {
  static constexpr int block_threads_max = tile::threads;
  static constexpr int blocks_per_multiprocessor = 2;
  static constexpr std::uint32_t pitch =
      tile::side + 4;  // of the product in scratch memory: rows begin in different banks
  struct memory {
    union {
      char stages[tile::stages_bytes<Parts>];
      float product[tile::side * pitch];
    };
    tile::row_table rows;
  };
  struct side_of {
    const char* path;
    std::uint32_t file;
    std::uint64_t offset;
  };

  side_of left, out;
  std::uint64_t rows, depth, columns;
  std::uint32_t part_depth;   // numbers of a row that are mapped at a time: all, or as many as a page has
  std::uint32_t tile_rows;    // at most tile::side: what the cache has room for
  std::uint32_t band_tiles;   // tiles of rows in a band
  std::uint32_t group_tiles;  // tiles of columns that are computed together
  bool brings;                // whether the cache has room for the next band beside the one that is multiplied
  tile::panel right;
  job::failure failed;
  atomic_word<std::uint64_t>* next;
  atomic_word<std::uint64_t>* done;  // of each tile's rows, the tiles that are written

  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const std::int32_t from = job::open_to_read(g, fs, left.path, left.file, failed);
    const std::int32_t to = job::open_to_write(g, fs, out.path, out.file, failed);
    const std::uint64_t across = ceiling(columns, tile::side), down = ceiling(rows, tile_rows);
    while (from >= 0 && to >= 0) {
      std::uint64_t i = 0;
      if (g.is_leader()) i = next->fetch_add_relaxed(1);
      i = g.broadcast(i);
      if (i >= across * down || g.all(failed.told())) break;
      const std::uint64_t band = i / (across * band_tiles), in_band = i % (across * band_tiles);
      const std::uint64_t first_row = band * band_tiles;
      const std::uint64_t height = down - first_row < band_tiles ? down - first_row : band_tiles;
      const std::uint64_t group = in_band / (height * group_tiles), in_group = in_band % (height * group_tiles);
      const std::uint64_t left_across = across - group * group_tiles;
      const std::uint64_t width = left_across < group_tiles ? left_across : group_tiles;
      const std::uint64_t row = (first_row + in_group / width) * tile_rows;
      const std::uint64_t column = group * group_tiles + in_group % width;
      const auto count = static_cast<std::uint32_t>(rows - row < tile_rows ? rows - row : tile_rows);
      if (brings) {
        if (band == 0) bring(g, fs, from, row, count, 0, 1);
        const std::uint64_t next_row = (first_row + height) * tile_rows, most = std::uint64_t{band_tiles} * tile_rows;
        if (next_row < rows)
          bring(g, fs, from, next_row, rows - next_row < most ? rows - next_row : most, in_band, across * height);
      }
      if (!multiply(g, fs, from, row, count, column)) break;
      write(g, fs, to, row, count, column * tile::side);
      // The last of a tile's rows: they go to the file while others are computed.
      std::uint32_t is_last = 0;
      if (g.is_leader()) is_last = done[row / tile_rows].fetch_add_relaxed(1) + 1 == across ? 1 : 0;
      if (g.broadcast(is_last) != 0)
        (void)gfadvise(g, fs, to, static_cast<std::int64_t>(out.offset + row * columns * sizeof(float)),
                       count * columns * sizeof(float), POSIX_FADV_DONTNEED);
    }
    if (from >= 0) (void)gclose(g, fs, from);
    if (to >= 0) job::close_written(g, fs, to, out.file, failed);
  }

 private:
  // Brings one of `shares` parts of some rows into the cache, in whole pages.
  GPUFS_HD void bring(const block_group& g, const mount_ref& fs, std::int32_t fd, std::uint64_t row,
                      std::uint64_t row_count, std::uint64_t share, std::uint64_t shares) const {
    const std::uint64_t row_bytes = depth * sizeof(T), bytes = row_count * row_bytes;
    const std::uint64_t part = ceiling(ceiling(bytes, shares), fs.layout.page_bytes()) * fs.layout.page_bytes();
    const std::uint64_t begin = share * part;
    if (begin < bytes)
      (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(left.offset + row * row_bytes + begin),
                     bytes - begin < part ? bytes - begin : part, POSIX_FADV_WILLNEED);
  }

  // Leaves the product in scratch memory.
  GPUFS_HD bool multiply(const block_group& g, const mount_ref& fs, std::int32_t fd, std::uint64_t row,
                         std::uint32_t count, std::uint64_t column_tile) const {
    auto& own = *reinterpret_cast<memory*>(block_group::scratch());
    const std::uint64_t row_bytes = depth * sizeof(T);
    tile::product sums(block_group::scratch() + sizeof(memory));
    const tile::rows_of_file of{fd, left.offset + row * row_bytes, row_bytes, count, depth, part_depth};
    const std::int32_t wrong = tile::add_mapped_product<Parts, T>(
        g, fs, sums, own.stages, own.rows, of, right, column_tile, [](std::uint32_t, std::uint32_t, const auto&) {});
    if (wrong != 0) {
      if (g.is_leader()) failed.tell(left.file, wrong);
      return false;
    }
    sums.each([&](std::uint32_t m, std::uint32_t n, float sum) { own.product[m * pitch + n] = sum; });
    g.sync();
    return true;
  }

  GPUFS_HD void write(const block_group& g, const mount_ref& fs, std::int32_t fd, std::uint64_t row,
                      std::uint32_t count, std::uint64_t column) const {
    const auto& own = *reinterpret_cast<const memory*>(block_group::scratch());
    const warp_group warp = g.warp();
    const std::uint64_t width = columns - column < tile::side ? columns - column : tile::side;
    for (std::uint32_t m = g.warp_rank(); m < count; m += g.warp_count())
      job::write_all(warp, fs, fd, out.file, failed, reinterpret_cast<const char*>(own.product + m * pitch),
                     width * sizeof(float), out.offset + ((row + m) * columns + column) * sizeof(float));
    g.sync();  // before the next product
  }
};

}  // namespace gpufs::linear

// The kernels of matvec() (linear.hpp).
#pragma once

#include "job/files.cuh"
#include "tile/numbers.cuh"

namespace gpufs::linear {

using job::failure;

// The files of a job, in the order in which it knows them.
enum role : std::uint32_t { matrix, vector, product };

// The member's part of the sum of products of `count` numbers, with several loads of the file's bytes in flight.
template <class T>
GPUFS_HD float products(const warp_group& g, const T* a, const T* b, std::uint64_t count) {
  constexpr std::uint64_t in_vector = sizeof(vector16) / sizeof(T);
  constexpr int at_once = 4;
  const std::uint64_t members = g.size();
  float sums[at_once] = {};
  std::uint64_t done = 0;
  const auto add = [](float& sum, const vector16& x, const vector16& y) {
    T p[in_vector], q[in_vector];
    std::memcpy(p, &x, sizeof x);
    std::memcpy(q, &y, sizeof y);
    GPUFS_UNROLL
    for (std::uint64_t k = 0; k < in_vector; ++k) sum += value_of(p[k]) * value_of(q[k]);
  };
  if (((reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b)) & (sizeof(vector16) - 1)) == 0) {
    const auto* const u = reinterpret_cast<const vector16*>(a);
    const auto* const v = reinterpret_cast<const vector16*>(b);
    const std::uint64_t n = count / in_vector;
    std::uint64_t i = g.rank();
    for (; i + (at_once - 1) * members < n; i += at_once * members) {
      vector16 x[at_once], y[at_once];
      GPUFS_UNROLL
      for (int k = 0; k < at_once; ++k) x[k] = u[i + members * k];
      GPUFS_UNROLL
      for (int k = 0; k < at_once; ++k) y[k] = v[i + members * k];
      GPUFS_UNROLL
      for (int k = 0; k < at_once; ++k) add(sums[k], x[k], y[k]);
    }
    for (; i < n; i += members) add(sums[0], u[i], v[i]);
    done = n * in_vector;
  }
  for (std::uint64_t i = done + g.rank(); i < count; i += members) sums[0] += value_of(a[i]) * value_of(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// What kernels that multiply are told.
template <class T>
struct factors {
  const char* path;  // of the matrix
  std::uint64_t offset, rows, columns;
  const T* vector;
  float* sums;
  failure failed;
};

// Rows in pieces of at most `piece_columns`, a warp each, which maps what it multiplies. A block takes as many neighbouring ones as make
// `block_pieces`, which lie together in the file, and asks for them at once.
template <class T>
struct multiply_pieces : tuned_shape {
  factors<T> of;  // its sums: of each piece
  std::uint64_t pieces_of_row, piece_columns, block_pieces;

  GPUFS_HD multiply_pieces(const factors<T>& f, std::uint64_t in_row, std::uint64_t in_piece, std::uint64_t in_block)
      : of(f), pieces_of_row(in_row), piece_columns(in_piece), block_pieces(in_block) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const warp_group warp = g.warp();
    const std::int32_t fd = job::open_to_read(g, fs, of.path, matrix, of.failed);
    if (fd < 0) return;
    const std::uint64_t pieces = of.rows * pieces_of_row;
    job::by_turns(pieces, block_pieces, [&](std::uint64_t first, std::uint64_t end) {
      const std::uint64_t from = place_of(first), bytes = place_of(end) - from;
      (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(from), bytes, POSIX_FADV_WILLNEED);
      for (std::uint64_t i = first + g.warp_rank(); i < end; i += g.warp_count()) {
        const float sum = sum_of(warp, multiply(warp, fs, fd, i));
        if (warp.is_leader()) of.sums[i] = sum;
      }
    });
    (void)gclose(g, fs, fd);  // of a file that is only read
  }

 private:
  GPUFS_HD std::uint64_t column_of(std::uint64_t piece) const { return piece % pieces_of_row * piece_columns; }
  // Bytes of the file in front of a piece, or behind the last.
  GPUFS_HD std::uint64_t place_of(std::uint64_t piece) const {
    return of.offset + (piece / pieces_of_row * of.columns + column_of(piece)) * sizeof(T);
  }
  // The member's part of a piece's sum.
  GPUFS_HD float multiply(const warp_group& warp, const mount_ref& fs, std::int32_t fd, std::uint64_t piece) const {
    const std::uint64_t column = column_of(piece), at = place_of(piece);
    const std::uint64_t count = of.columns - column < piece_columns ? of.columns - column : piece_columns;
    float sum = 0;
    for (std::uint64_t done = 0; done < count;) {
      const mapping m =
          gmmap(warp, fs, fd, static_cast<std::int64_t>(at + done * sizeof(T)), (count - done) * sizeof(T));
      if (m.bytes < static_cast<std::int64_t>(sizeof(T))) {
        if (m.bytes > 0) (void)gmunmap(warp, fs, m.data);
        if (warp.is_leader()) of.failed.tell(matrix, m.bytes < 0 ? m.bytes : 0);
        return 0;
      }
      // Pages hold whole numbers.
      const std::uint64_t here = static_cast<std::uint64_t>(m.bytes) / sizeof(T);
      const float part = products(warp, reinterpret_cast<const T*>(m.data), of.vector + column + done, here);
      (void)gmunmap(warp, fs, m.data, part);
      sum += part;
      done += here;
    }
    return sum;
  }
};

// Rows that are too short for a warp: as many as fit into its scratch memory are read together.
template <class T>
struct multiply_short_rows : tuned_shape {
  static constexpr std::uint64_t batch_bytes = 4096;  // of scratch memory for a warp
  factors<T> of;
  std::uint64_t block_rows;

  GPUFS_HD multiply_short_rows(const factors<T>& f, std::uint64_t in_block) : of(f), block_rows(in_block) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const warp_group warp = g.warp();
    const std::int32_t fd = job::open_to_read(g, fs, of.path, matrix, of.failed);
    if (fd < 0) return;
    auto* const own = reinterpret_cast<T*>(block_group::scratch() + block_group::warp_rank() * batch_bytes);
    const std::uint64_t row_bytes = of.columns * sizeof(T), batch = batch_bytes / row_bytes;
    job::by_turns(of.rows, block_rows, [&](std::uint64_t first, std::uint64_t end) {
      const std::uint64_t from = of.offset + first * row_bytes;
      (void)gfadvise(g, fs, fd, static_cast<std::int64_t>(from), (end - first) * row_bytes, POSIX_FADV_WILLNEED);
      for (std::uint64_t row = first + g.warp_rank() * batch; row < end; row += g.warp_count() * batch) {
        const std::uint64_t count = end - row < batch ? end - row : batch;
        if (!job::read_all(warp, fs, fd, matrix, of.failed, reinterpret_cast<char*>(own), count * row_bytes,
                           of.offset + row * row_bytes))
          break;
        for (std::uint64_t k = warp.rank(); k < count; k += warp.size()) {
          float sum = 0;
          for (std::uint64_t c = 0; c < of.columns; ++c)
            sum += value_of(own[k * of.columns + c]) * value_of(of.vector[c]);
          of.sums[row + k] = sum;
        }
        warp.sync();  // before the next read overwrites it
      }
    });
    (void)gclose(g, fs, fd);  // of a file that is only read
  }
};

// Adds up the sums of each row's pieces, and writes them.
struct write_sums : tuned_shape {
  static constexpr std::uint64_t batch = 2048;  // rows that a block writes at once, out of its scratch memory
  const char* path;
  std::uint64_t offset, rows, pieces_of_row;
  const float* sums;
  failure failed;

  GPUFS_HD write_sums(const char* p, std::uint64_t o, std::uint64_t r, std::uint64_t n, const float* s, failure f)
      : path(p), offset(o), rows(r), pieces_of_row(n), sums(s), failed(f) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    const block_group g = this_block();
    const std::int32_t fd = job::open_to_write(g, fs, path, product, failed);
    if (fd < 0) return;
    auto* const made = reinterpret_cast<float*>(block_group::scratch());
    job::by_turns(rows, batch, [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t k = first + g.rank(); k < end; k += g.size()) {
        float sum = 0;
        for (std::uint64_t i = 0; i < pieces_of_row; ++i) sum += sums[k * pieces_of_row + i];
        made[k - first] = sum;
      }
      g.sync();
      job::write_all(g, fs, fd, product, failed, reinterpret_cast<const char*>(made), (end - first) * sizeof(float),
                     offset + first * sizeof(float));
      g.sync();  // before the next sums overwrite them
    });
    job::close_written(g, fs, fd, product, failed);
  }
};

}  // namespace gpufs::linear

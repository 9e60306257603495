// Converts rows of numbers, mapped from a file or in memory, into slices for the matrix units
// (product.cuh).
#pragma once

#include "common/arithmetic.cuh"
#include "gpufs/gpufs.cuh"
#include "tile/numbers.cuh"
#include "tile/product.cuh"

namespace gpufs::tile {

// Where a tile's rows are. In the block's scratch memory. The part of each row lies in at most two
// pages.
struct row_table {
  const char* first[side];
  const char* second[side];  // the bytes after those of `first`
  std::uint32_t first_bytes[side];
};

// Sets rows of contiguous memory, `stride` bytes apart.
GPUFS_HD inline void set_rows(const block_group& g, row_table& rows, const char* data,
                              std::uint64_t stride, std::uint32_t count) {
  for (std::uint32_t r = g.rank(); r < side; r += g.size()) {
    rows.first[r] = data + (r < count ? r : 0) * stride;
    rows.first_bytes[r] = ~0u;
  }
  g.sync();
}

// Collective of the block. Maps `bytes` (at most a page) of each of the first `count` rows. The
// first row is at `at` in the file. Each member of a warp maps one part; a warp looks its parts up
// together. Returns the same to all members: 0 or -errno, -ENODATA if the file is too short.
// Callers must call unmap_rows() even after an error.
GPUFS_HD inline std::int32_t map_rows(const block_group& g, const mount_ref& fs, std::int32_t fd,
                                      row_table& rows, std::uint64_t at, std::uint64_t stride,
                                      std::uint32_t count, std::uint32_t bytes) {
  const warp_group warp = g.warp();
  const std::uint64_t page_bytes = fs.layout.page_bytes();
  std::uint64_t wrong = 0;
  for (std::uint32_t part = g.rank(); part < side * 2; part += g.size()) {
    const std::uint32_t row = part / 2;
    std::uint64_t begin = at + row * stride;
    const std::uint64_t room = page_bytes - (begin & (page_bytes - 1));
    const auto in_first = static_cast<std::uint32_t>(room < bytes ? room : bytes);
    const bool is_first = part % 2 == 0;
    const std::uint32_t wanted = row >= count ? 0 : is_first ? in_first : bytes - in_first;
    if (!is_first) begin += in_first;
    const mapping m = gmmap_each(warp, fs, fd, static_cast<std::int64_t>(begin), wanted);
    (is_first ? rows.first : rows.second)[row] = m.bytes > 0 ? m.data : nullptr;
    if (is_first) rows.first_bytes[row] = in_first;
    if (m.bytes < wanted) wrong = static_cast<std::uint64_t>(m.bytes < 0 ? -m.bytes : ENODATA);
  }
  const std::uint64_t least = g.least(wrong == 0 ? ~std::uint64_t{0} : wrong);
  return least == ~std::uint64_t{0} ? 0 : -static_cast<std::int32_t>(least);
}

// Collective of the block. Called when all that members read of the rows is in slices, so the loads
// are complete.
GPUFS_HD inline void unmap_rows(const block_group& g, const mount_ref& fs, const row_table& rows) {
  const warp_group warp = g.warp();
  g.sync();  // members read what others mapped
  for (std::uint32_t part = g.rank(); part < side * 2; part += g.size()) {
    const char* const data = (part % 2 == 0 ? rows.first : rows.second)[part / 2];
    (void)gmunmap_each_unfenced(warp, fs, mapping{data, data == nullptr ? 0 : 1}, part);
  }
  g.sync();  // before the table is filled again
}

// Whether rows of `T` can be loaded 16 bytes at a time, without a vector that lies in two pages or
// past the end of a row.
template <class T>
GPUFS_HD bool are_aligned(std::uint64_t at, std::uint64_t stride, std::uint64_t columns) {
  return ((at | stride | columns * sizeof(T)) & (sizeof(vector16) - 1)) == 0;
}

// Numbers on their way from rows of `T` into a slice. load() loads them, so the loads overlap with
// other work; store() stores them.
template <class T, bool Aligned>
class slice_on_its_way {
 public:
  // Loads numbers [column, column + depth) of the rows' part. Past `columns`, and for rows from
  // `count` on, loads zeros.
  GPUFS_HD void load(const block_group& g, const row_table& rows, std::uint32_t count,
                     std::uint32_t column, std::uint32_t columns) {
    GPUFS_UNROLL
    for (std::uint32_t j = 0; j < mine; ++j) {
      const std::uint32_t i = g.rank() + j * step, row = i / vectors_of_row;
      const std::uint32_t from = column + i % vectors_of_row * in_vector;
      held_[j] = {};
      if (row < count && from < columns) held_[j] = vector_of(rows, row, from, columns - from);
    }
  }

  // Stores into a slice in `Parts` parts. Calls `take(row, number of the vector in its row, the
  // vector's numbers)` for each vector.
  template <int Parts, class Take>
  GPUFS_HD void store(const block_group& g, char* slice, const Take& take) const {
    GPUFS_UNROLL
    for (std::uint32_t j = 0; j < mine; ++j) {
      const std::uint32_t i = g.rank() + j * step, row = i / vectors_of_row,
                          vector = i % vectors_of_row;
      T numbers[in_vector];
      std::memcpy(numbers, &held_[j], sizeof held_[j]);
      take(row, vector, numbers);
      std::uint32_t words[Parts][in_vector / 2];
      split_all(numbers, words);
      const std::uint32_t k = vector * in_vector;
      char* const to = slice + place_in_slice(row, k / 8) + k % 8 * sizeof(bfloat16);
      GPUFS_UNROLL
      for (int p = 0; p < Parts; ++p) {
        if constexpr (in_vector == 8)
          *reinterpret_cast<vector16*>(to + p * slice_bytes) = {words[p][0], words[p][1],
                                                                words[p][2], words[p][3]};
        else
          *reinterpret_cast<std::uint64_t*>(to + p * slice_bytes) =
              std::uint64_t{words[p][1]} << 32 | words[p][0];
      }
    }
  }

 private:
  static constexpr std::uint32_t in_vector = sizeof(vector16) / sizeof(T),
                                 vectors_of_row = depth / in_vector;
  static constexpr std::uint32_t step = threads_of_block, mine = side * vectors_of_row / step;

  GPUFS_HD static const char* place_of(const row_table& rows, std::uint32_t row,
                                       std::uint32_t byte) {
    const std::uint32_t in_first = rows.first_bytes[row];
    return byte < in_first ? rows.first[row] + byte : rows.second[row] + (byte - in_first);
  }
  GPUFS_HD static vector16 vector_of(const row_table& rows, std::uint32_t row, std::uint32_t column,
                                     [[maybe_unused]] std::uint32_t left) {
    const std::uint32_t byte = column * static_cast<std::uint32_t>(sizeof(T));
    if constexpr (Aligned) return *reinterpret_cast<const vector16*>(place_of(rows, row, byte));
    T numbers[in_vector] = {};
    GPUFS_UNROLL
    for (std::uint32_t k = 0; k < in_vector; ++k) {
      if (k < left)
        numbers[k] = *reinterpret_cast<const T*>(
            place_of(rows, row, byte + k * static_cast<std::uint32_t>(sizeof(T))));
    }
    vector16 v;
    std::memcpy(&v, numbers, sizeof v);
    return v;
  }

  vector16 held_[mine];
};

// Starts to copy `Bytes` from device memory into scratch memory. finish_slices() waits for all
// copies of the calling thread. After a barrier all members of the block see the bytes.
template <std::uint32_t Bytes>
GPUFS_HD void start_slices(const block_group& g, char* to, const char* from) {
  constexpr std::uint32_t step = 16 * threads_of_block;
  static_assert(Bytes % step == 0, "each thread copies as much");
  GPUFS_UNROLL
  for (std::uint32_t n = 0; n < Bytes / step; ++n) {
    const std::uint32_t i = n * step + g.rank() * 16;
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<std::uint32_t>(__cvta_generic_to_shared(to + i))),
                 "l"(from + i)
                 : "memory");
#else
    std::memcpy(to + i, from + i, 16);
#endif
  }
}
GPUFS_HD inline void finish_slices() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Rows packed for the matrix units, in device memory. Tiles of `side` rows follow one another; each
// has its slices, one after another; each slice has its parts.
struct panel {
  const char* slices;
  std::uint32_t slices_of_row;
  GPUFS_HD static constexpr std::uint64_t slices_in(std::uint64_t columns) {
    return ceiling(columns, depth);
  }
  GPUFS_HD static constexpr std::uint64_t bytes(std::uint64_t rows, std::uint64_t columns,
                                                int parts) {
    return ceiling(rows, side) * slices_in(columns) * slice_bytes *
           static_cast<std::uint64_t>(parts);
  }
  // Bytes before a slice.
  template <int Parts>
  GPUFS_HD static constexpr std::uint64_t place(std::uint64_t tile, std::uint64_t number,
                                                std::uint64_t in_row) {
    return (tile * in_row + number) * (slice_bytes * Parts);
  }
  template <int Parts>
  GPUFS_HD const char* slice(std::uint64_t tile, std::uint64_t number) const {
    return slices + place<Parts>(tile, number, slices_of_row);
  }
};

// Stores eight numbers of a row into a slice, in their parts.
template <int Parts, class T>
GPUFS_HD void store_eight(const T (&numbers)[8], char* slice, std::uint32_t row,
                          std::uint32_t eight) {
  std::uint32_t words[Parts][4];
  split_all(numbers, words);
  GPUFS_UNROLL
  for (int p = 0; p < Parts; ++p) {
    const vector16 eight_numbers{words[p][0], words[p][1], words[p][2], words[p][3]};
    *reinterpret_cast<vector16*>(slice + p * slice_bytes + place_in_slice(row, eight)) =
        eight_numbers;
  }
}

// Collective of the block. Packs columns of numbers as a panel's rows, one slice: `width` columns,
// `count` numbers deep, padded with zeros. The numbers lie row by row, `pitch` apart. Afterwards
// all members see the slice; they must wait before they change numbers.
template <int Parts, class T>
GPUFS_HD void pack_columns(const block_group& g, const T* numbers, std::uint32_t pitch,
                           std::uint32_t count, std::uint32_t width, char* slice) {
  constexpr std::uint32_t eights = depth / 8;
  for (std::uint32_t i = g.rank(); i < side * eights; i += g.size()) {
    const std::uint32_t n = i % side, eight = i / side;
    T some[8];
    GPUFS_UNROLL
    for (std::uint32_t j = 0; j < 8; ++j) {
      const std::uint32_t k = eight * 8 + j;
      some[j] = k < count && n < width ? numbers[k * pitch + n] : T{};
    }
    store_eight<Parts>(some, slice, n, eight);
  }
}

// Scratch memory of a block that multiplies rows with a panel: two slices of each. One is filled
// while the other is multiplied.
template <int Parts>
inline constexpr std::uint32_t stages_bytes = 2 * 2 * Parts * slice_bytes;

// The factors: numbers [0, columns) of `count` rows, and a tile of a panel, from slice `slice` on.
struct factors {
  const row_table& rows;
  std::uint32_t count, columns;
  const panel& right;
  std::uint64_t tile, slice;
};

// How many slices the matrix units sum up alone. They truncate what does not fit into a sum, always
// towards zero, each time they add 16 products. Their partial sums are rounded when they are added
// to the total. This many slices make that cheap.
template <int Parts>
inline constexpr std::uint32_t slices_of_sum = 192 / (Parts * (Parts + 1) / 2) / (depth / 16);

// The loop of add_product().
template <int Parts, class T, bool Aligned, class Take>
GPUFS_HD GPUFS_TILE_INLINE void add_slices(const block_group& g, product<Parts>& to, char* stages,
                                           const factors& of, const Take& take) {
  constexpr std::uint32_t bytes = Parts * slice_bytes;
  product<Parts> sums = to;
  sums.clear();
  slice_on_its_way<T, Aligned> next;
  const auto slices = static_cast<std::uint32_t>(panel::slices_in(of.columns));
  const char* right = of.right.slice<Parts>(of.tile, of.slice);
  next.load(g, of.rows, of.count, 0, of.columns);
  start_slices<bytes>(g, stages + bytes, right);
  next.template store<Parts>(g, stages, take);
  finish_slices();
  sums.stored();
  g.sync();
  GPUFS_NO_UNROLL
  for (std::uint32_t s = 0; s < slices; ++s) {
    char* const now = stages + s % 2 * (2 * bytes);
    char* const then = stages + (s + 1) % 2 * (2 * bytes);
    right += bytes;
    if (s + 1 < slices) {
      next.load(g, of.rows, of.count, (s + 1) * depth, of.columns);
      start_slices<bytes>(g, then + bytes, right);
    }
    sums.template start<Parts>(now, now + bytes);
    if (s + 1 < slices) next.template store<Parts>(g, then, take);
    finish_slices();
    sums.stored();
    sums.finish();
    g.sync();
    if (s % slices_of_sum<Parts> == slices_of_sum<Parts> - 1 || s + 1 == slices) {
      to.add(sums);
      sums.clear();
    }
  }
}

template <int Parts, class T, bool Aligned, class Take>
GPUFS_HD GPUFS_OUT_OF_LINE void add_slices_in_registers(const block_group g, product<Parts>& to,
                                                        char* stages, const factors of,
                                                        const Take take) {
  add_slices<Parts, T, Aligned>(g, to, stages, of, take);
}

// Collective of the block. Adds a product. Calls `take` as slice_on_its_way::store does, for all
// numbers of the rows.
template <int Parts, class T, bool Aligned, class Take>
GPUFS_HD void add_product(const block_group& g, product<Parts>& to, char* stages, const factors& of,
                          const Take& take) {
  if constexpr (product<Parts>::is_inlined) add_slices<Parts, T, Aligned>(g, to, stages, of, take);
  else add_slices_in_registers<Parts, T, Aligned>(g, to, stages, of, take);
}
template <int Parts, class T, class Take>
GPUFS_HD void add_product(const block_group& g, product<Parts>& to, char* stages, const factors& of,
                          bool aligned, const Take& take) {
  if (aligned) add_product<Parts, T, true>(g, to, stages, of, take);
  else add_product<Parts, T, false>(g, to, stages, of, take);
}

// Whether rows longer than a page are mapped in parts of one page each: all rows begin at the same
// place in a page, and the rest of that page is whole slices.
GPUFS_HD constexpr bool parts_are_pages(std::uint64_t at, std::uint64_t stride,
                                        std::uint64_t page_bytes, std::uint64_t number_bytes) {
  return stride % page_bytes == 0 && (page_bytes - at % page_bytes) % (depth * number_bytes) == 0;
}

// Rows of a file: the first `count` from `at` on, `stride` bytes apart, each `columns` numbers
// long.
struct rows_of_file {
  std::int32_t fd;
  std::uint64_t at, stride;
  std::uint32_t count;
  std::uint64_t columns;
  std::uint32_t part_columns;  // columns mapped at a time: all, or as many as a page has
};

// Collective of the block. Maps rows part by part and adds their product with a tile of a panel.
// Returns as map_rows() does.
template <int Parts, class T, class Take>
GPUFS_HD std::int32_t add_mapped_product(const block_group& g, const mount_ref& fs,
                                         product<Parts>& to, char* stages, row_table& rows,
                                         const rows_of_file& of, const panel& right,
                                         std::uint64_t tile, const Take& take) {
  const std::uint64_t page_bytes = fs.layout.page_bytes();
  // The first part ends with its page, if then each part is a page.
  const bool are_pages =
      of.part_columns != of.columns && parts_are_pages(of.at, of.stride, page_bytes, sizeof(T));
  const std::uint64_t in_front = are_pages ? of.at % page_bytes / sizeof(T) : 0;
  std::int32_t wrong = 0;
  for (std::uint64_t done = 0; done < of.columns && wrong == 0;) {
    const std::uint64_t left = of.columns - done,
                        most = done == 0 ? of.part_columns - in_front : of.part_columns;
    const auto columns = static_cast<std::uint32_t>(left < most ? left : most);
    wrong = map_rows(g, fs, of.fd, rows, of.at + done * sizeof(T), of.stride, of.count,
                     columns * static_cast<std::uint32_t>(sizeof(T)));
    if (wrong == 0) {
      const factors both{rows, of.count, columns, right, tile, done / depth};
      add_product<Parts, T>(g, to, stages, both, are_aligned<T>(of.at, of.stride, columns), take);
    }
    unmap_rows(g, fs, rows);
    done += columns;
  }
  return wrong;
}

}  // namespace gpufs::tile

#include "linear.hpp"

#include <string>

#include "linear/linear.hpp"
#include "mount.hpp"
#include "rivals/linear/rivals.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

std::string text_of(const nb::bytes& path) { return {path.c_str(), path.size()}; }

linear::array_file file_of(const nb::bytes& path, std::uint64_t offset, bool is_bfloat16) {
  return {text_of(path), offset,
          is_bfloat16 ? linear::element::bfloat16 : linear::element::float32};
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def(
      "matvec",
      [](const py_mount& mount_, const nb::bytes& matrix, std::uint64_t matrix_offset,
         std::uint64_t rows, std::uint64_t columns, const nb::bytes& vector,
         std::uint64_t vector_offset, bool is_bfloat16, const nb::bytes& out,
         std::uint64_t out_offset, bool alone) {
        const linear::matvec_files files{
            file_of(matrix, matrix_offset, is_bfloat16), rows,         columns,
            file_of(vector, vector_offset, is_bfloat16), text_of(out), out_offset};
        use_interruptibly(mount_.holder, nb::none(),
                          [=](mount& m) { linear::matvec(m, files, alone); });
      },
      "mount"_a, "matrix"_a, "matrix_offset"_a, "rows"_a, "columns"_a, "vector"_a,
      "vector_offset"_a, "is_bfloat16"_a, "out"_a, "out_offset"_a, "alone"_a);
  m.def(
      "matmul",
      [](const py_mount& mount_, const nb::bytes& left, std::uint64_t left_offset,
         std::uint64_t rows, std::uint64_t depth, const nb::bytes& right,
         std::uint64_t right_offset, std::uint64_t columns, bool is_bfloat16, const nb::bytes& out,
         std::uint64_t out_offset, bool alone) {
        const linear::matmul_files files{file_of(left, left_offset, is_bfloat16),
                                         rows,
                                         depth,
                                         file_of(right, right_offset, is_bfloat16),
                                         columns,
                                         text_of(out),
                                         out_offset};
        use_interruptibly(mount_.holder, nb::none(),
                          [=](mount& m) { linear::matmul(m, files, alone); });
      },
      "mount"_a, "left"_a, "left_offset"_a, "rows"_a, "depth"_a, "right"_a, "right_offset"_a,
      "columns"_a, "is_bfloat16"_a, "out"_a, "out_offset"_a, "alone"_a);
  // Returns the product's bytes, and seconds. `piece_bytes` 0: the CPU program.
  m.def(
      "bench_matvec_rival",
      [](const nb::bytes& matrix, std::uint64_t rows, std::uint64_t columns,
         const nb::bytes& vector, bool is_bfloat16, unsigned threads, std::uint64_t piece_bytes) {
        const linear::array_file a = file_of(matrix, 0, is_bfloat16),
                                 x = file_of(vector, 0, is_bfloat16);
        linear::rival_result r;
        {
          const nb::gil_scoped_release released;
          r = piece_bytes == 0
                  ? linear::matvec_on_host(a, rows, columns, x, threads)
                  : linear::matvec_by_pipeline(a, rows, columns, x, threads, piece_bytes);
        }
        return nb::make_tuple(nb::bytes(r.product.data(), r.product.size() * sizeof(float)),
                              r.seconds);
      },
      "matrix"_a, "rows"_a, "columns"_a, "vector"_a, "is_bfloat16"_a, "threads"_a, "piece_bytes"_a);
  // Returns seconds. `band_rows` 0: the CPU program.
  m.def(
      "bench_matmul_rival",
      [](const nb::bytes& left, std::uint64_t rows, std::uint64_t depth, const nb::bytes& right,
         std::uint64_t columns, bool is_bfloat16, const nb::bytes& out, unsigned threads,
         std::uint64_t band_rows) {
        const linear::matmul_files files{file_of(left, 0, is_bfloat16),  rows,    depth,
                                         file_of(right, 0, is_bfloat16), columns, text_of(out)};
        const nb::gil_scoped_release released;
        return band_rows == 0 ? linear::matmul_on_host(files, threads)
                              : linear::matmul_by_pipeline(files, threads, band_rows);
      },
      "left"_a, "rows"_a, "depth"_a, "right"_a, "columns"_a, "is_bfloat16"_a, "out"_a, "threads"_a,
      "band_rows"_a);
}

}  // namespace gpufs::python

#include "search.hpp"

#include <string>
#include <utility>
#include <vector>

#include "mount.hpp"
#include "rivals/search/rivals.hpp"
#include "search/search.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

// Converts a tuple (path, offset, stride, count).
search::vectors_file file_of(const nb::tuple& file) {
  const auto path = nb::cast<nb::bytes>(file[0]);
  return {std::string(path.c_str(), path.size()), nb::cast<std::uint64_t>(file[1]),
          nb::cast<std::uint64_t>(file[2]), nb::cast<std::uint64_t>(file[3])};
}

search::question question_of(const nb::tuple& queries, const nb::list& databases,
                             std::uint64_t dimensions, double threshold, std::uint32_t top) {
  search::question q{file_of(queries), {}, dimensions, threshold, top};
  for (const nb::handle d : databases) q.databases.push_back(file_of(nb::cast<nb::tuple>(d)));
  return q;
}

// Returns squared distances as float64 and indices as uint64. The largest index means "no vector".
std::pair<nb::bytes, nb::bytes> to_bytes(const std::vector<search::found>& lists) {
  std::vector<double> distances;
  std::vector<std::uint64_t> indices;
  for (const search::found& f : lists) {
    distances.push_back(f.squared_distance);
    indices.push_back(f.index);
  }
  return {nb::bytes(distances.data(), distances.size() * sizeof(double)),
          nb::bytes(indices.data(), indices.size() * sizeof(std::uint64_t))};
}

}  // namespace

void bind_search(nb::module_& m) {
  m.def(
      "search",
      [](const py_mount& mount_, const nb::tuple& queries, const nb::list& databases,
         std::uint64_t dimensions, double threshold, std::uint32_t top, bool alone) {
        const search::question q = question_of(queries, databases, dimensions, threshold, top);
        const std::vector<search::found> lists = use_interruptibly(
            mount_.holder, nb::none(), [=](mount& m) { return search::search(m, q, alone); });
        const auto [distances, indices] = to_bytes(lists);
        return nb::make_tuple(distances, indices);
      },
      "mount"_a, "queries"_a, "databases"_a, "dimensions"_a, "threshold"_a, "top"_a, "alone"_a);
  // Returns the result of search, and seconds. `piece_bytes` 0: the CPU program.
  m.def(
      "bench_search_rival",
      [](const nb::tuple& queries, const nb::list& databases, std::uint64_t dimensions,
         double threshold, std::uint32_t top, unsigned threads, std::uint64_t piece_bytes) {
        const search::question q = question_of(queries, databases, dimensions, threshold, top);
        search::rival_result r;
        {
          const nb::gil_scoped_release released;
          r = piece_bytes == 0 ? search::search_on_host(q, threads)
                               : search::search_by_pipeline(q, threads, piece_bytes);
        }
        const auto [distances, indices] = to_bytes(r.lists);
        return nb::make_tuple(distances, indices, r.seconds);
      },
      "queries"_a, "databases"_a, "dimensions"_a, "threshold"_a, "top"_a, "threads"_a,
      "piece_bytes"_a);
}

}  // namespace gpufs::python

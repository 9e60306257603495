#include "collage.hpp"

#include <cerrno>
#include <string>
#include <string_view>

#include "collage/build.hpp"
#include "collage/collage.hpp"
#include "collage/rivals.hpp"
#include "collage/synthetic.hpp"
#include "mount.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

std::string text_of(const nb::bytes& path) { return {path.c_str(), path.size()}; }

template <class T>
nb::bytes bytes_of(const std::vector<T>& values) {
  return nb::bytes(values.data(), values.size() * sizeof(T));
}

// A new object, to be filled before anybody else has it: what is large is written once then, and not zeroed and copied before.
nb::bytes new_bytes(std::size_t size) {
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::bytes>(made);
}
template <class T>
T* memory_of(const nb::bytes& made) {
  return reinterpret_cast<T*>(const_cast<char*>(made.c_str()));
}

collage::block_picture picture_of(const nb::bytes& pixels, std::uint32_t columns, std::uint32_t rows) {
  const collage::block_picture picture{reinterpret_cast<const std::uint8_t*>(pixels.c_str()), columns, rows};
  if (picture.bytes() != pixels.size()) throw error(EINVAL, "pixels that do not make up the blocks");
  return picture;
}

void bind_building(nb::module_& m) {
  using builder = collage::dataset_builder;
  nb::class_<builder>(m, "CollageBuilder")
      .def(
          "__init__",
          [](builder* self, const nb::bytes& folder, unsigned threads) {
            new (self) builder(text_of(folder), threads);
          },
          "folder"_a, "threads"_a)
      .def(
          "add",
          [](builder& self, const nb::bytes& pictures) {
            const auto* const bytes = reinterpret_cast<const std::uint8_t*>(pictures.c_str());
            const std::uint64_t count = pictures.size() / collage::picture_bytes;
            if (count * collage::picture_bytes != pictures.size()) throw error(EINVAL, "parts of tiles");
            const nb::gil_scoped_release released;
            self.add(bytes, count);
          },
          "pictures"_a)
      .def("add_synthetic", &builder::add_synthetic, "seed"_a, "first"_a, "count"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("finish", &builder::finish, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("tiles", &builder::tiles)
      .def_prop_ro("tables_written", &builder::tables_written);
  m.def(
      "collage_tiles",
      [](std::uint64_t seed, std::uint64_t first, std::uint64_t count) {
        std::vector<std::uint8_t> pictures(count * collage::picture_bytes);
        for (std::uint64_t i = 0; i < count; ++i)
          collage::make_synthetic_tile(seed, first + i, &pictures[i * collage::picture_bytes]);
        return bytes_of(pictures);
      },
      "seed"_a, "first"_a, "count"_a);
}

}  // namespace

void bind_collage(nb::module_& m) {
  bind_building(m);
  // Tiles and distances (uint32), the collage's pixels, how many candidates there were, and seconds.
  m.def(
      "collage",
      [](const py_mount& mount_, const nb::bytes& folder, const nb::bytes& pixels, std::uint32_t columns,
         std::uint32_t rows) {
        const std::string from = text_of(folder);
        const collage::block_picture picture = picture_of(pixels, columns, rows);
        const nb::bytes tiles = new_bytes(picture.blocks() * sizeof(std::uint32_t));
        const nb::bytes distances = new_bytes(picture.blocks() * sizeof(std::uint32_t));
        const nb::bytes made = new_bytes(picture.bytes());
        const collage::tiles_found to{memory_of<std::uint32_t>(tiles), memory_of<std::uint32_t>(distances),
                                      memory_of<std::uint8_t>(made)};
        collage::summary told{};
        {
          const nb::gil_scoped_release released;
          mount_.holder->use(
              [&](const mount& m) { told = collage::make_collage(m, collage::open_dataset(from), picture, to); });
        }
        return nb::make_tuple(tiles, distances, made, told.candidates, told.seconds);
      },
      "mount"_a, "folder"_a, "pixels"_a, "columns"_a, "rows"_a);
  // The tiles, and seconds. `way`: cpu, cuda or resident.
  m.def(
      "bench_collage_rival",
      [](const char* name, const nb::bytes& folder, const nb::bytes& pixels, std::uint32_t columns, std::uint32_t rows,
         unsigned threads) {
        const std::string_view way = name;
        const std::string from = text_of(folder);
        const collage::block_picture picture = picture_of(pixels, columns, rows);
        collage::rival_result r;
        {
          const nb::gil_scoped_release released;
          const collage::dataset opened = collage::open_dataset(from);
          r = way == "cpu"    ? collage::collage_on_host(opened, picture, threads)
              : way == "cuda" ? collage::collage_by_two_kernels(opened, picture, threads)
                              : collage::collage_of_resident(opened, picture);
        }
        return nb::make_tuple(bytes_of(r.tiles), r.seconds);
      },
      "way"_a, "folder"_a, "pixels"_a, "columns"_a, "rows"_a, "threads"_a);
}

}  // namespace gpufs::python

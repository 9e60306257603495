#include "collage.hpp"

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>

#include "collage/build.hpp"
#include "collage/collage.hpp"
#include "collage/synthetic.hpp"
#include "mount.hpp"
#include "rivals/collage/rivals.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

std::string text_of(const nb::bytes& path) { return {path.c_str(), path.size()}; }

template <class T>
nb::bytes bytes_of(const std::vector<T>& values) {
  return nb::bytes(values.data(), values.size() * sizeof(T));
}

// Returns a new object, which the caller fills before it passes it on. This avoids zeroing and
// copying large results.
nb::bytes new_bytes(std::size_t size) {
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::bytes>(made);
}
template <class T>
T* memory_of(const nb::bytes& made) {
  return reinterpret_cast<T*>(const_cast<char*>(made.c_str()));
}

collage::block_picture picture_of(const nb::bytes& pixels, std::uint32_t columns,
                                  std::uint32_t rows) {
  const collage::block_picture picture{reinterpret_cast<const std::uint8_t*>(pixels.c_str()),
                                       columns, rows};
  if (picture.bytes() != pixels.size())
    throw error(EINVAL, "pixels that do not make up the blocks");
  return picture;
}

void bind_building(nb::module_& m) {
  // An interrupted call may own the builder longer than Python does.
  struct shared {
    std::shared_ptr<collage::dataset_builder> made;
  };
  nb::class_<shared>(m, "CollageBuilder")
      .def(
          "__init__",
          [](shared* self, const nb::bytes& folder, unsigned threads) {
            new (self) shared{std::make_shared<collage::dataset_builder>(text_of(folder), threads)};
          },
          "folder"_a, "threads"_a)
      .def(
          "add",
          [](const shared& self, const nb::bytes& pictures) {
            const auto* const bytes = reinterpret_cast<const std::uint8_t*>(pictures.c_str());
            const std::uint64_t count = pictures.size() / collage::picture_bytes;
            if (count * collage::picture_bytes != pictures.size())
              throw error(EINVAL, "parts of tiles");
            interruptibly({}, pictures, [=, own = self.made] { own->add(bytes, count); });
          },
          "pictures"_a)
      .def(
          "add_synthetic",
          [](const shared& self, std::uint64_t seed, std::uint64_t first, std::uint64_t count) {
            interruptibly({}, nb::none(),
                          [=, own = self.made] { own->add_synthetic(seed, first, count); });
          },
          "seed"_a, "first"_a, "count"_a)
      // Calls tell(tables written) from time to time.
      .def(
          "finish",
          [](const shared& self, const nb::object& tell) {
            std::function<void()> meanwhile;
            if (!tell.is_none()) meanwhile = [&] { tell(self.made->tables_written()); };
            interruptibly({}, nb::none(), [own = self.made] { own->finish(); }, meanwhile);
          },
          "tell"_a = nb::none())
      .def_prop_ro("tiles", [](const shared& self) { return self.made->tiles(); })
      .def_prop_ro("tables_written",
                   [](const shared& self) { return self.made->tables_written(); });
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
  // Returns tiles and distances (uint32), the collage's pixels, the number of candidates, and
  // seconds.
  m.def(
      "collage",
      [](const py_mount& mount_, const nb::bytes& folder, const nb::bytes& pixels,
         std::uint32_t columns, std::uint32_t rows) {
        const std::string from = text_of(folder);
        const collage::block_picture picture = picture_of(pixels, columns, rows);
        const nb::bytes tiles = new_bytes(picture.blocks() * sizeof(std::uint32_t));
        const nb::bytes distances = new_bytes(picture.blocks() * sizeof(std::uint32_t));
        const nb::bytes made = new_bytes(picture.bytes());
        const collage::tiles_found to{memory_of<std::uint32_t>(tiles),
                                      memory_of<std::uint32_t>(distances),
                                      memory_of<std::uint8_t>(made)};
        const collage::summary told = use_interruptibly(
            mount_.holder, nb::make_tuple(pixels, tiles, distances, made), [=](mount& m) {
              return collage::make_collage(m, collage::open_dataset(from), picture, to);
            });
        return nb::make_tuple(tiles, distances, made, told.candidates, told.seconds);
      },
      "mount"_a, "folder"_a, "pixels"_a, "columns"_a, "rows"_a);
  // Returns the tiles, and seconds. `way`: cpu, cuda or resident.
  m.def(
      "bench_collage_rival",
      [](const char* name, const nb::bytes& folder, const nb::bytes& pixels, std::uint32_t columns,
         std::uint32_t rows, unsigned threads) {
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

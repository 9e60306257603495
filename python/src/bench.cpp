#include "bench.hpp"

#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/bench.hpp"
#include "engine/files.hpp"
#include "mount.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

std::string path_of(const nb::bytes& path) { return {path.c_str(), path.size()}; }

// Calls f(mount) without the GIL. The mount stays open during the call.
template <class F>
auto use(const py_mount& m, F&& f) {
  const nb::gil_scoped_release released;
  return m.holder->use(std::forward<F>(f));
}

template <class F>
auto without_gil(F&& f) {
  const nb::gil_scoped_release released;
  return f();
}

bench::access access_named(const std::string& name) {
  if (name == "map") return bench::access::map;
  if (name == "map_each") return bench::access::map_each;
  if (name == "advised_map") return bench::access::advised_map;
  if (name == "read_by_warp") return bench::access::read_by_warp;
  if (name == "read_by_block") return bench::access::read_by_block;
  if (name == "view") return bench::access::view;
  if (name == "view_several") return bench::access::view_several;
  if (name == "gather") return bench::access::gather;
  throw std::invalid_argument("no such access: " + name);
}

bench::host_way way_named(const std::string& name) {
  if (name == "mapping") return bench::host_way::mapping;
  if (name == "pread" || name == "pwrite") return bench::host_way::call;
  if (name == "direct_io") return bench::host_way::direct_io;
  throw std::invalid_argument("no such way: " + name);
}

// An object in the memory of a mount's device.
template <class T>
struct held {
  std::shared_ptr<mount_holder> holder;
  std::unique_ptr<T> thing;

  held(std::shared_ptr<mount_holder> h, std::unique_ptr<T> t)
      : holder(std::move(h)), thing(std::move(t)) {}
  held(held&&) = default;
  ~held() { give_back(); }
  T& get() const {
    if (thing == nullptr) throw std::invalid_argument("the memory was given back");
    return *thing;
  }
  void give_back() noexcept {
    if (thing == nullptr) return;
    try {
      holder->use([&](mount&) { thing.reset(); });
    } catch (const std::exception&) {
      (void)thing.release();  // the mount was closed first: nothing can free the object
    }
  }
};
using py_plain_memory = held<bench::plain_memory>;
using py_device_memory = held<bench::device_memory>;

template <class T>
void give_back(held<T>& self) {
  without_gil([&] { self.give_back(); });
}

void bind_walk(nb::module_& m) {
  nb::class_<bench::walk>(m, "BenchWalk")
      .def(
          "__init__",
          [](bench::walk* place, const std::string& access, bool random, std::uint64_t span_bytes,
             std::uint64_t chunk_bytes, std::uint64_t operations, std::uint32_t blocks,
             std::uint32_t threads) {
            new (place) bench::walk{access_named(access), random, span_bytes, chunk_bytes,
                                    operations,           blocks, threads};
          },
          nb::kw_only(), "access"_a, "random"_a, "span_bytes"_a, "chunk_bytes"_a, "operations"_a,
          "blocks"_a, "threads"_a)
      .def("positions", [](const bench::walk& self) {
        const std::vector<std::uint64_t> numbers = bench::positions(self);
        return nb::bytes(numbers.data(), numbers.size() * sizeof numbers[0]);
      });
  nb::class_<bench::sample>(m, "BenchSample")
      .def_ro("seconds", &bench::sample::seconds)
      .def_ro("cpu_seconds", &bench::sample::cpu_seconds)
      .def_ro("operations", &bench::sample::operations)
      .def_ro("bytes", &bench::sample::bytes)
      .def_ro("wrong_bytes", &bench::sample::wrong_bytes);
}

void bind_memory(nb::module_& m) {
  nb::class_<py_plain_memory>(m, "BenchPlainMemory")
      .def("give_back", give_back<bench::plain_memory>);
  m.def(
      "bench_copy_on_device",
      [](const py_mount& mount_, std::uint64_t bytes) {
        return py_plain_memory(
            mount_.holder, use(mount_, [&](mount& m) { return bench::copy_on_device(m, bytes); }));
      },
      "mount"_a, "bytes"_a);
  m.def(
      "bench_registered_file",
      [](const py_mount& mount_, const nb::bytes& path, std::uint64_t bytes) {
        return py_plain_memory(mount_.holder, use(mount_, [bytes, file = path_of(path)](mount& m) {
                                 return bench::registered_file(m, file, bytes);
                               }));
      },
      "mount"_a, "path"_a, "bytes"_a);

  nb::class_<py_device_memory>(m, "BenchDeviceMemory")
      .def(
          "__init__",
          [](py_device_memory* place, const py_mount& mount_, std::uint64_t bytes) {
            auto memory = use(
                mount_, [&](mount& m) { return std::make_unique<bench::device_memory>(m, bytes); });
            new (place) py_device_memory(mount_.holder, std::move(memory));
          },
          "mount"_a, "bytes"_a)
      .def_prop_ro("address",
                   [](const py_device_memory& self) {
                     return reinterpret_cast<std::uintptr_t>(self.get().data());
                   })
      .def(
          "copy_from_host",
          [](const py_device_memory& self, std::uintptr_t address, std::uint64_t bytes) {
            without_gil(
                [&] { self.get().copy_from_host(reinterpret_cast<const void*>(address), bytes); });
          },
          "address"_a, "bytes"_a)
      .def(
          "wrong_bytes",
          [](const py_device_memory& self, const bench::walk& w) {
            return without_gil([&] { return self.get().wrong_bytes(w); });
          },
          "walk"_a)
      .def("give_back", give_back<bench::device_memory>);
}

void bind_files(nb::module_& m) {
  m.def(
      "bench_write_content",
      [](const nb::bytes& path, std::uint64_t offset, std::uint64_t bytes) {
        without_gil([&, file = path_of(path)] { bench::write_content(file, offset, bytes); });
      },
      "path"_a, "offset"_a, "bytes"_a);
  m.def(
      "bench_write_small_files",
      [](const nb::bytes& folder, std::uint64_t first, std::uint64_t count) {
        without_gil(
            [&, place = path_of(folder)] { bench::write_small_files(place, first, count); });
      },
      "folder"_a, "first"_a, "count"_a);
  m.def(
      "bench_holds_content",
      [](const nb::bytes& path) { return bench::holds_content(path_of(path)); }, "path"_a);
  m.def(
      "bench_cached_share",
      [](const nb::bytes& path) { return bench::cached_share(path_of(path)); }, "path"_a);
  m.def(
      "bench_drop_from_cache",
      [](const nb::bytes& path) {
        without_gil([file = path_of(path)] { bench::drop_from_cache(file); });
      },
      "path"_a);
}

void bind_ours(nb::module_& m) {
  m.def(
      "bench_open",
      [](const py_mount& mount_, const nb::bytes& path) {
        return use(mount_, [file = path_of(path)](mount& m) { return bench::open_file(m, file); });
      },
      "mount"_a, "path"_a);
  m.def(
      "bench_touch_extents",
      [](const py_mount& mount_, std::int32_t fd, std::uint64_t bytes) {
        use(mount_, [&](mount& m) { bench::touch_extents(m, fd, bytes); });
      },
      "mount"_a, "fd"_a, "bytes"_a);
  m.def(
      "bench_read",
      [](const py_mount& mount_, std::int32_t fd, const bench::walk& w) {
        return use(mount_, [&](mount& m) { return bench::read(m, fd, w); });
      },
      "mount"_a, "fd"_a, "walk"_a);
  m.def(
      "bench_check",
      [](const py_mount& mount_, std::int32_t fd, const bench::walk& w) {
        return use(mount_, [&](mount& m) { return bench::check(m, fd, w).wrong_bytes; });
      },
      "mount"_a, "fd"_a, "walk"_a);
  m.def(
      "bench_open_small_files",
      [](const py_mount& mount_, const nb::bytes& folder, std::uint64_t first,
         std::uint64_t count) {
        return use(mount_, [first, count, place = path_of(folder)](mount& m) {
          return bench::open_small_files(m, place, first, count);
        });
      },
      "mount"_a, "folder"_a, "first"_a, "count"_a);
  const auto writing = [](std::uint64_t bytes, std::uint64_t chunk_bytes, std::uint32_t blocks) {
    return bench::writing{bytes, chunk_bytes, blocks};
  };
  m.def(
      "bench_write_file",
      [=](const py_mount& mount_, const nb::bytes& path, const py_plain_memory& content,
          std::uint64_t bytes, std::uint64_t chunk_bytes, std::uint32_t blocks) {
        return use(mount_, [&, file = path_of(path)](mount& m) {
          return bench::write_file(m, file, content.get(), writing(bytes, chunk_bytes, blocks));
        });
      },
      "mount"_a, "path"_a, "content"_a, "bytes"_a, "chunk_bytes"_a, "blocks"_a);
  m.def(
      "bench_write_cached",
      [=](const py_mount& mount_, const nb::bytes& path, std::uint64_t bytes,
          std::uint64_t chunk_bytes, std::uint32_t blocks, std::uint64_t operations) {
        return use(mount_, [&, file = path_of(path)](mount& m) {
          return bench::write_cached(m, file, writing(bytes, chunk_bytes, blocks), operations);
        });
      },
      "mount"_a, "path"_a, "bytes"_a, "chunk_bytes"_a, "blocks"_a, "operations"_a);
  m.def(
      "bench_append",
      [=](const py_mount& mount_, const nb::bytes& path, std::uint64_t bytes,
          std::uint64_t chunk_bytes, std::uint32_t blocks) {
        return use(mount_, [&, file = path_of(path)](mount& m) {
          return bench::append(m, file, writing(bytes, chunk_bytes, blocks));
        });
      },
      "mount"_a, "path"_a, "bytes"_a, "chunk_bytes"_a, "blocks"_a);
  m.def(
      "bench_raw_write",
      [=](const py_mount& mount_, std::uint64_t bytes, std::uint64_t chunk_bytes,
          std::uint32_t blocks, std::uint64_t operations) {
        return use(mount_, [&](mount& m) {
          return bench::raw_write(m, writing(bytes, chunk_bytes, blocks), operations);
        });
      },
      "mount"_a, "bytes"_a, "chunk_bytes"_a, "blocks"_a, "operations"_a);
  m.def(
      "bench_reopen",
      [](const py_mount& mount_, const nb::bytes& path, std::uint64_t operations) {
        return use(mount_, [operations, file = path_of(path)](mount& m) {
          return bench::reopen(m, file, operations);
        });
      },
      "mount"_a, "path"_a, "operations"_a);
}

void bind_limits(nb::module_& m) {
  m.def(
      "bench_raw_pull",
      [](const py_mount& mount_, const py_plain_memory& from, const bench::walk& w) {
        return use(mount_, [&](mount& m) { return bench::raw_pull(m, from.get(), w); });
      },
      "mount"_a, "source"_a, "walk"_a);
  m.def(
      "bench_raw_read",
      [](const py_mount& mount_, const py_plain_memory& from, const bench::walk& w) {
        return use(mount_, [&](mount& m) { return bench::raw_read(m, from.get(), w); });
      },
      "mount"_a, "source"_a, "walk"_a);
  m.def(
      "bench_copy_engine",
      [](const py_mount& mount_, std::uint64_t bytes, std::uint64_t chunk_bytes) {
        return use(mount_, [&](mount& m) { return bench::copy_engine(m, bytes, chunk_bytes); });
      },
      "mount"_a, "bytes"_a, "chunk_bytes"_a);
}

void bind_peers(nb::module_& m) {
  m.def(
      "bench_read_then_copy",
      [](const py_mount& mount_, const nb::bytes& path, std::uint64_t bytes) {
        return use(mount_, [bytes, file = path_of(path)](mount& m) {
          return bench::read_then_copy(m, file, bytes);
        });
      },
      "mount"_a, "path"_a, "bytes"_a);
  m.def(
      "bench_pipeline",
      [](const py_mount& mount_, const nb::bytes& path, std::uint64_t bytes,
         std::uint64_t chunk_bytes, unsigned threads) {
        return use(mount_, [=, file = path_of(path)](mount& m) {
          return bench::pipeline(m, file, bytes, chunk_bytes, threads);
        });
      },
      "mount"_a, "path"_a, "bytes"_a, "chunk_bytes"_a, "threads"_a);
  m.def(
      "bench_host_read",
      [](const nb::bytes& path, const std::string& way, const bench::walk& w, unsigned threads) {
        return without_gil([&, file = path_of(path)] {
          return bench::host_read(file, way_named(way), w, threads);
        });
      },
      "path"_a, "way"_a, "walk"_a, "threads"_a);
  m.def(
      "bench_host_open_small_files",
      [](const nb::bytes& folder, std::uint64_t first, std::uint64_t count, unsigned threads) {
        return without_gil([&, place = path_of(folder)] {
          return bench::host_open_small_files(place, first, count, threads);
        });
      },
      "folder"_a, "first"_a, "count"_a, "threads"_a);
  m.def(
      "bench_host_write",
      [](const nb::bytes& path, const std::string& way, std::uint64_t bytes,
         std::uint64_t chunk_bytes, unsigned threads, bool in_memory) {
        return without_gil([&, file = path_of(path), how = way_named(way)] {
          return bench::host_write(file, how, bytes, chunk_bytes, threads, in_memory);
        });
      },
      "path"_a, "way"_a, "bytes"_a, "chunk_bytes"_a, "threads"_a, "in_memory"_a);
  m.def(
      "bench_host_reopen",
      [](const nb::bytes& path, std::uint64_t operations, unsigned threads) {
        return without_gil(
            [&, file = path_of(path)] { return bench::host_reopen(file, operations, threads); });
      },
      "path"_a, "operations"_a, "threads"_a);
}

}  // namespace

void bind_bench(nb::module_& m) {
  bind_walk(m);
  bind_memory(m);
  bind_files(m);
  bind_ours(m);
  bind_limits(m);
  bind_peers(m);
}

}  // namespace gpufs::python

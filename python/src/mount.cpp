#include "mount.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

device_kind device_named(const std::string& name) {
  if (name == "auto") return device_kind::automatic;
  if (name == "cpu") return device_kind::cpu;
  if (name == "cuda") return device_kind::cuda;
  throw std::invalid_argument("device must be 'auto', 'cpu' or 'cuda', not '" + name + "'");
}

const char* name_of(device_kind kind) {
  switch (kind) {
    case device_kind::automatic: return "auto";
    case device_kind::cpu: return "cpu";
    case device_kind::cuda: return "cuda";
  }
  return "unknown";
}

std::string bytes_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// Calls f(mount) without the GIL.
template <class F>
auto use(py_mount& self, F&& f) {
  const nb::gil_scoped_release released;
  return self.holder->use(std::forward<F>(f));
}

void make(py_mount* place, const std::string& device, int ordinal, std::uint64_t cache_bytes,
          std::uint64_t page_bytes, unsigned workers, std::uint64_t extent_budget_bytes,
          std::uint64_t extent_bytes, unsigned channel_slots, std::uint32_t staging_bytes,
          std::uint64_t bulk_bytes, unsigned rings, unsigned open_files, unsigned cpu_threads,
          std::int64_t reclaim_timeout_ns, std::int64_t request_timeout_ns,
          std::int64_t unmount_timeout_ns, bool read_only, bool maps_files,
          bool raises_descriptor_limit, const std::optional<nb::bytes>& root) {
  mount_options options;
  options.device = device_named(device);
  options.ordinal = ordinal;
  options.cache_bytes = cache_bytes;
  options.page_bytes = page_bytes;
  options.workers = workers;
  options.extent_budget_bytes = extent_budget_bytes;
  options.extent_bytes = extent_bytes;
  options.channel_slots = channel_slots;
  options.staging_bytes = staging_bytes;
  options.bulk_bytes = bulk_bytes;
  options.rings = rings;
  options.open_files = open_files;
  options.cpu_threads = cpu_threads;
  options.reclaim_timeout = std::chrono::nanoseconds(reclaim_timeout_ns);
  options.request_timeout = std::chrono::nanoseconds(request_timeout_ns);
  options.unmount_timeout = std::chrono::nanoseconds(unmount_timeout_ns);
  options.read_only = read_only;
  options.maps_files = maps_files;
  options.raises_descriptor_limit = raises_descriptor_limit;
  if (root) options.root = bytes_of(*root);
  // Allocates and pins memory, which takes seconds on some machines.
  new (place) py_mount(
      interruptibly({}, nb::none(), [options] { return std::make_shared<mount_holder>(options); }));
}

nb::dict options_of(py_mount& self) {
  const mount_options o = use(self, [](mount& m) { return m.options(); });
  nb::dict d;
  d["ordinal"] = o.ordinal;
  d["cache_bytes"] = o.cache_bytes;
  d["page_bytes"] = o.page_bytes;
  d["workers"] = o.workers;
  d["extent_budget_bytes"] = o.extent_budget_bytes;
  d["extent_bytes"] = o.extent_bytes;
  d["channel_slots"] = o.channel_slots;
  d["staging_bytes"] = o.staging_bytes;
  d["bulk_bytes"] = o.bulk_bytes;
  d["rings"] = o.rings;
  d["open_files"] = o.open_files;
  d["cpu_threads"] = o.cpu_threads;
  d["reclaim_timeout_ns"] = o.reclaim_timeout.count();
  d["request_timeout_ns"] = o.request_timeout.count();
  d["unmount_timeout_ns"] = o.unmount_timeout.count();
  d["read_only"] = o.read_only;
  d["maps_files"] = o.maps_files;
  d["raises_descriptor_limit"] = o.raises_descriptor_limit;
  d["root"] = o.root ? nb::object(nb::bytes(o.root->native().data(), o.root->native().size()))
                     : nb::object(nb::none());
  return d;
}

nb::dict stats_of(py_mount& self) {
  const statistics s = use(self, [](mount& m) { return m.stats(); });
  nb::dict d;
  for (std::uint32_t i = 0; i < counter_count; ++i) {
    d[statistics::name(static_cast<counter>(i))] = s.values[i];
  }
  d["extents_registered"] = s.extents_registered;
  d["extent_bytes"] = s.extent_bytes;
  d["extents_refused"] = s.extents_refused;
  d["host_open_files"] = s.host_open_files;
  d["requests_served"] = s.requests_served;
  nb::list buckets;
  for (const std::uint64_t count : s.fault_latency) buckets.append(count);
  d["fault_latency_ns"] = buckets;
  return d;
}

// Tuples with the fields of gpufs::file_statistics, in the order of
// gpufs._statistics.FileStatistics.
nb::list file_stats_of(py_mount& self) {
  const std::vector<file_statistics> files = use(self, [](mount& m) { return m.file_stats(); });
  nb::list list;
  for (const file_statistics& f : files) {
    list.append(nb::make_tuple(nb::bytes(f.path.data(), f.path.size()), f.size, f.hits,
                               f.page_loads, f.direct_loads, f.loaded_bytes, f.holders, f.extents));
  }
  return list;
}

// Tuples with the fields of gpufs._statistics.FileError, and the number of dropped errors.
nb::tuple file_errors_of(py_mount& self) {
  const file_error_list all = [&] {
    const nb::gil_scoped_release released;
    return self.holder->file_errors();
  }();
  nb::list list;
  for (const file_error& e : all.errors) {
    list.append(nb::make_tuple(nb::bytes(e.path.data(), e.path.size()), e.error_number,
                               e.operation_name(), e.at_unmount, e.count, e.discarded));
  }
  return nb::make_tuple(list, all.dropped);
}

}  // namespace

void bind_mount(nb::module_& m) {
  m.attr("device_ref_bytes") = sizeof(mount_ref);
  nb::class_<py_mount>(m, "Mount")
      .def("__init__", make, nb::kw_only(), "device"_a, "ordinal"_a, "cache_bytes"_a,
           "page_bytes"_a, "workers"_a, "extent_budget_bytes"_a, "extent_bytes"_a,
           "channel_slots"_a, "staging_bytes"_a, "bulk_bytes"_a, "rings"_a, "open_files"_a,
           "cpu_threads"_a, "reclaim_timeout_ns"_a, "request_timeout_ns"_a, "unmount_timeout_ns"_a,
           "read_only"_a, "maps_files"_a, "raises_descriptor_limit"_a, "root"_a.none())
      .def("close",
           [](py_mount& self) {
             const std::shared_ptr<mount_holder>& holder = self.holder;
             const auto close = [holder] { holder->close(); };
             if (!holder->forked() && holder->left()->put_off(close)) return holder->close_later();
             interruptibly({holder->left()}, nb::none(), close);
           })
      .def("unmount",
           [](py_mount& self) {
             const std::shared_ptr<mount_holder>& holder = self.holder;
             const auto close = [holder] { holder->close(); };
             if (!holder->forked() && holder->left()->put_off(close)) return holder->close_later();
             // Like the destructor of a mount that was not unmounted.
             const auto print = [](const std::exception_ptr& failed) {
               try {
                 std::rethrow_exception(failed);
               } catch (const std::exception& e) {
                 std::fprintf(stderr, "gpufs: %s\n", e.what());
               }
             };
             interruptibly(
                 {holder->left()}, nb::none(), [holder] { holder->unmount(); }, {}, print);
           })
      .def("raise_kept", [](py_mount& self) { self.holder->throw_kept(); })
      .def("file_errors", file_errors_of)
      .def(
          "sync_folder",
          [](py_mount& self, const nb::bytes& path) {
            use_interruptibly(self.holder, nb::none(),
                              [folder = bytes_of(path)](mount& m) { m.sync_folder(folder); });
          },
          "path"_a)
      .def_prop_ro("closed",
                   [](py_mount& self) {
                     const nb::gil_scoped_release released;
                     return self.holder->closed();
                   })
      .def_prop_ro(
          "device",
          [](py_mount& self) { return name_of(use(self, [](mount& m) { return m.device(); })); })
      .def_prop_ro("ordinal",
                   [](py_mount& self) { return use(self, [](mount& m) { return m.ordinal(); }); })
      .def_prop_ro(
          "device_name",
          [](py_mount& self) { return use(self, [](mount& m) { return m.device_name(); }); })
      .def_prop_ro(
          "direct_path",
          [](py_mount& self) { return use(self, [](mount& m) { return m.direct_path(); }); })
      .def_prop_ro("bulk_path",
                   [](py_mount& self) { return use(self, [](mount& m) { return m.bulk_path(); }); })
      .def_prop_ro(
          "multiprocessors",
          [](py_mount& self) { return use(self, [](mount& m) { return m.multiprocessors(); }); })
      .def_prop_ro("options", options_of)
      .def("device_ref",
           [](py_mount& self) {
             return reinterpret_cast<std::uintptr_t>(
                 use(self, [](mount& m) { return m.device_ref(); }));
           })
      .def("stats", stats_of)
      .def("file_stats", file_stats_of)
      .def(
          "register_file",
          [](py_mount& self, const nb::bytes& path) {
            return use_interruptibly(self.holder, nb::none(), [file = bytes_of(path)](mount& m) {
              return m.register_file(file);
            });
          },
          "path"_a)
      .def(
          "start_timeline",
          [](py_mount& self, std::size_t events_max) {
            use(self, [&](mount& m) { m.start_timeline(events_max); });
          },
          "events_max"_a)
      .def("stop_timeline",
           [](py_mount& self) { return use(self, [](mount& m) { return m.stop_timeline(); }); })
      .def("drop_extents",
           [](py_mount& self) {
             self.holder->refuse_forked();
             interruptibly({self.holder->left()}, nb::none(), [holder = self.holder] {
               holder->use_alone([](mount& m) { m.drop_extents(); });
             });
           })
      .def("synchronize", [](py_mount& self) {
        use_interruptibly(self.holder, nb::none(), [](mount& m) { m.synchronize(); });
      });
}

}  // namespace gpufs::python

#include "device_memory.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "arrays/arrays.hpp"
#include "mount.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

// Calls f(mount) without the GIL. The mount stays open during the call.
template <class F>
auto use(mount_holder& holder, F&& f) {
  const nb::gil_scoped_release released;
  return holder.use(std::forward<F>(f));
}

// Returns the buffer as a DLPack capsule. The capsule keeps `owner` alive: the buffer, and the
// stream that orders its free.
nb::object as_dlpack(const py_buffer& self, const nb::handle owner,
                     const std::vector<std::size_t>& shape, int code, int bits, int device_type,
                     int ordinal) {
  nb::dlpack::dtype type{};
  type.code = static_cast<std::uint8_t>(code);
  type.bits = static_cast<std::uint8_t>(bits);
  type.lanes = 1;
  return nb::cast(nb::ndarray<>(self.held->data(), shape.size(), shape.data(), owner, nullptr, type,
                                device_type, ordinal));
}

// Describes an array that has __dlpack__: address, shape, strides in items, type code, bits, device
// type, device number.
nb::tuple dlpack_facts(const nb::ndarray<nb::ro>& a) {
  nb::list shape, strides;
  for (std::size_t i = 0; i < a.ndim(); ++i) {
    shape.append(a.shape(i));
    strides.append(a.stride(i));
  }
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(a.data()), nb::tuple(shape),
                        nb::tuple(strides), a.dtype().code, a.dtype().bits, a.device_type(),
                        a.device_id());
}

// A place in a stream, which the work of another stream can wait for.
struct py_place {
  std::shared_ptr<mount_holder> holder;
  std::unique_ptr<arrays::device_memory::event> event;
};

}  // namespace

void bind_memory(nb::module_& m) {
  nb::class_<py_buffer>(m, "DeviceBuffer")
      .def_prop_ro(
          "address",
          [](const py_buffer& b) { return reinterpret_cast<std::uintptr_t>(b.held->data()); })
      .def_prop_ro(
          "stream",
          [](const py_buffer& b) { return reinterpret_cast<std::uintptr_t>(b.held->stream()); })
      .def("note_use_elsewhere", [](const py_buffer& b) { b.held->note_use_elsewhere(); })
      .def(
          "hold_back",
          [](const py_buffer& b, std::uintptr_t stream) {
            const nb::gil_scoped_release released;
            const auto event = b.held->memory().make_event();
            event->record(b.held->stream());
            event->hold_back(stream_at(stream));
          },
          "stream"_a)
      .def(
          "copy_to_host",
          [](const py_buffer& b, std::uintptr_t to, std::uint64_t bytes, nb::handle kept) {
            interruptibly({}, kept, [=, from = b.held] {
              from->memory().copy_to_host(reinterpret_cast<void*>(to), from->data(), bytes,
                                          from->stream());
            });
          },
          "address"_a, "bytes"_a, "kept"_a.none())
      .def("dlpack", as_dlpack, "owner"_a, "shape"_a, "code"_a, "bits"_a, "device_type"_a,
           "ordinal"_a);
  nb::class_<py_memory>(m, "DeviceMemory")
      .def("__init__",
           [](py_memory* place, const py_mount& mount_) {
             auto memory =
                 use(*mount_.holder, [](mount& m) { return arrays::make_device_memory(m); });
             new (place) py_memory(mount_.holder, std::move(memory));
           })
      .def(
          "allocate",
          [](const py_memory& self, std::uint64_t bytes, std::uintptr_t stream,
             std::uintptr_t home) {
            return self.own(stream_at(home),
                            [&] { return self.memory->allocate(bytes, stream_at(stream)); });
          },
          "bytes"_a, "stream"_a, "home"_a)
      .def(
          "upload",
          [](const py_memory& self, std::uintptr_t from, std::uint64_t bytes, std::uintptr_t stream,
             nb::handle kept) {
            self.holder->refuse_forked();
            return new py_buffer(
                interruptibly({self.holder->left()}, kept, [=, memory = self.memory] {
                  void* const data =
                      memory->upload(reinterpret_cast<const void*>(from), bytes, stream_at(stream));
                  return std::make_shared<buffer>(memory, data, stream_at(stream));
                }));
          },
          "address"_a, "bytes"_a, "stream"_a, "kept"_a)
      .def("background_stream",
           [](const py_memory& self) {
             self.holder->refuse_forked();
             return reinterpret_cast<std::uintptr_t>(self.memory->background_stream());
           })
      .def(
          "place_in",
          [](const py_memory& self, std::uintptr_t stream) {
            self.holder->refuse_forked();
            const nb::gil_scoped_release released;
            auto event = self.memory->make_event();
            event->record(stream_at(stream));
            return py_place{self.holder, std::move(event)};
          },
          "stream"_a)
      .def(
          "check_address",
          [](const py_memory& self, std::uintptr_t address) {
            self.holder->refuse_forked();
            self.memory->check_address(reinterpret_cast<const void*>(address));
          },
          "address"_a)
      .def(
          "hold_back",
          [](const py_memory& self, std::uintptr_t stream, std::uintptr_t until) {
            self.holder->refuse_forked();
            const nb::gil_scoped_release released;
            const auto event = self.memory->make_event();
            event->record(stream_at(until));
            event->hold_back(stream_at(stream));
          },
          "stream"_a, "until"_a);
  nb::class_<py_place>(m, "Place")
      .def(
          "hold_back",
          [](const py_place& self, std::uintptr_t stream) {
            self.holder->refuse_forked();
            const nb::gil_scoped_release released;
            self.event->hold_back(stream_at(stream));
          },
          "stream"_a);
  nb::class_<py_outcome>(m, "Outcome")
      .def(nb::init<const py_memory&>(), "memory"_a)
      .def("wait", &py_outcome::wait);
  m.def("dlpack_facts", dlpack_facts, "array"_a);
}

}  // namespace gpufs::python

#include "arrays.hpp"

#include <fcntl.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "arrays/arrays.hpp"
#include "device_memory.hpp"
#include "gpufs/error.hpp"
#include "mount.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gpufs::python {
namespace {

std::shared_ptr<arrays::outcome> shared_outcome(const py_outcome* own) {
  return own != nullptr ? own->shared() : nullptr;
}

// State that a file's calls share. Some calls continue after Python has released the file.
struct file_state {
  // Shared by calls, exclusive for closing: device calls need an open descriptor until they end.
  // Locked after the mount's lock.
  std::shared_mutex in_use;
  const std::shared_ptr<leftovers> left = std::make_shared<leftovers>();
};

using file_pointer = std::shared_ptr<arrays::file>;

// Whether an error is of a file's reads or writes, and does not say that file or mount are closed.
bool is_of_file(const std::exception_ptr& failed) noexcept {
  try {
    std::rethrow_exception(failed);
  } catch (const std::invalid_argument&) {
    return false;
  } catch (...) {
    return true;
  }
}

// Keeps an error of a file that has no caller to throw to. If the file may have lost bytes,
// unmount() throws it.
void keep(mount_holder& holder, bool writes, const std::exception_ptr& failed) noexcept {
  if (!writes) return;
  try {
    std::rethrow_exception(failed);
  } catch (const error&) {
    holder.keep_error(failed);
  } catch (...) {  // an index error of a read, or the mount was closed before
  }
}

// Returns the file that `made` opens in the mount. The last owner closes it, with a kernel of the
// mount.
template <class Made>
file_pointer open_file(const std::shared_ptr<mount_holder>& holder, bool writes, const Made& made) {
  std::unique_ptr<arrays::file> opened = holder->use(made);
  return {opened.release(), [holder, writes](arrays::file* file) {
            try {
              holder->use([&](mount&) {
                try {
                  file->close();
                } catch (const std::exception&) {
                  keep(*holder, writes, std::current_exception());
                }
                delete std::exchange(file, nullptr);
              });
            } catch (const std::exception&) {
              // The mount is closed, or belongs to another process: nothing can close the file.
              file->forget();
              if (!holder->forked()) delete file;  // otherwise the memory belongs to the parent
            }
          }};
}

class py_file {
 public:
  py_file(std::shared_ptr<mount_holder> holder, file_pointer file, bool writes, bool waits)
      : holder_(std::move(holder)), file_(std::move(file)), writes_(writes), waits_(waits) {}
  py_file(const py_file&) = delete;
  py_file& operator=(const py_file&) = delete;
  ~py_file() {
    const nb::gil_scoped_release released;
    file_.reset();
  }

  // Called with the GIL.
  file_pointer get() const {
    holder_->refuse_forked();
    if (file_ == nullptr) throw_closed();
    return file_;
  }
  // Returns f(file). f may wait, and a signal handler may interrupt the wait: f owns everything
  // that it uses, except for memory of `kept`. Then the file keeps f's error. Neither the mount nor
  // the file is closed during the call.
  template <class F>
  auto wait(nb::handle kept, F f) const {
    return wait(kept, writes_, std::move(f));
  }
  // Calls f(file, own), which reads or writes. It waits only on the CPU device, where it throws the
  // error that `own` receives; if a signal handler has ended the call, the file keeps the error.
  template <class F>
  void start(nb::handle kept, const py_outcome* own, bool writes, F f) const {
    const std::shared_ptr<arrays::outcome> outcome = shared_outcome(own);
    if (!waits_) {
      const file_pointer file = get();
      const nb::gil_scoped_release released;
      return use(*holder_, *state_, *file, [&](arrays::file& opened) { f(opened, outcome.get()); });
    }
    wait(kept, writes, [outcome, own_f = std::move(f)](arrays::file& opened) {
      own_f(opened, outcome.get());
      if (outcome != nullptr) outcome->wait();
    });
  }
  // Like wait(), called without the GIL, with a `file` from an earlier get().
  template <class F>
  auto use_without_gil(arrays::file& file, const F& f) const {
    return use(*holder_, *state_, file, f);
  }
  bool closed() const { return file_ == nullptr || file_->descriptor() < 0 || holder_->closed(); }
  std::uint64_t failures() const { return file_ == nullptr ? failures_ : file_->failures(); }
  // Waits for calls of other threads, including their close(), but not for interrupted calls: then
  // the file is closed when they have ended, and unmount() throws its errors. Does nothing in a
  // forked process, like the mount's close().
  void close() {
    if (holder_->forked()) return;
    if (file_ == nullptr) return;
    const auto close = [holder = holder_, state = state_, file = file_] {
      close_now(*holder, *state, *file);
    };
    const auto forget = [this] {
      if (file_ == nullptr) return;  // another thread has closed it
      failures_ = file_->failures();
      file_.reset();
    };
    const auto close_later = [close, keep = keeper()] {
      try {
        close();
      } catch (const std::exception&) {
        keep(std::current_exception());
      }
    };
    if (state_->left->put_off(close_later)) return forget();
    try {
      interruptibly({state_->left, holder_->left()}, nb::none(), close, {}, keeper());
    } catch (const std::exception&) {
      forget();
      throw;
    }
    forget();
  }

 private:
  // Returns a function that keeps errors of calls without a caller.
  std::function<void(const std::exception_ptr&)> keeper() const {
    return [holder = holder_, writes = writes_](const std::exception_ptr& failed) {
      keep(*holder, writes, failed);
    };
  }
  [[noreturn]] static void throw_closed() {
    throw std::invalid_argument("the gpufs file is closed");
  }

  // As wait(kept, f). `writes`: whether f's errors are of writes.
  template <class F>
  auto wait(nb::handle kept, bool writes, F f) const {
    const file_pointer file = get();
    return interruptibly(
        {state_->left, holder_->left()}, kept,
        [holder = holder_, state = state_, file, own = std::move(f)] {
          return use(*holder, *state, *file, own);
        },
        {},
        [file, writes](const std::exception_ptr& failed) {
          if (is_of_file(failed)) file->keep_error(failed, writes);
        });
  }

  template <class F>
  static auto use(mount_holder& holder, file_state& state, arrays::file& file, const F& f) {
    return holder.use([&](mount&) {
      const std::shared_lock lock(state.in_use);
      if (file.descriptor() < 0) throw_closed();  // closed after get()
      return f(file);
    });
  }

  static void close_now(mount_holder& holder, file_state& state, arrays::file& file) {
    bool reached = false;
    try {
      holder.use([&](mount&) {
        reached = true;
        const std::unique_lock lock(state.in_use);
        file.close();
      });
    } catch (const std::invalid_argument&) {
      if (reached) throw;
      file.forget();  // the mount was closed first: nothing can close the file
    }
  }

  const std::shared_ptr<mount_holder> holder_;
  const std::shared_ptr<file_state> state_ = std::make_shared<file_state>();
  file_pointer file_;           // guarded by the GIL, like failures_
  std::uint64_t failures_ = 0;  // of a closed file
  const bool writes_;
  const bool waits_;  // whether reads and writes wait
};

std::uint32_t fill(arrays::steps (&to)[arrays::selection::dimensions_max], const nb::tuple& from) {
  if (from.size() > std::size(to)) {
    throw std::invalid_argument("an index with more than " + std::to_string(std::size(to)) +
                                " dimensions that lie apart in the file");
  }
  std::uint32_t n = 0;
  for (const nb::handle h : from) {
    const auto d = nb::cast<nb::tuple>(h);
    to[n++] = {nb::cast<std::uint64_t>(d[0]), nb::cast<std::int64_t>(d[1])};
  }
  return n;
}

}  // namespace

void bind_arrays(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const arrays::index_error& e) {
      PyErr_SetString(PyExc_IndexError, e.what());
    }
  });
  bind_memory(m);
  nb::class_<py_file>(m, "File")
      .def(
          "__init__",
          [](py_file* place, const py_mount& mount_, const py_memory& memory, const nb::bytes& path,
             const nb::bytes& name, int flags, unsigned mode) {
            const std::string to_open(path.c_str(), path.size()),
                to_tell(name.c_str(), name.size());
            const std::shared_ptr<mount_holder>& holder = mount_.holder;
            holder->refuse_forked();
            bool waits = false;
            {
              const nb::gil_scoped_release released;
              waits = holder->use([](mount& m) { return m.device() == device_kind::cpu; });
            }
            const bool writes = (flags & O_ACCMODE) != O_RDONLY;
            auto file =
                interruptibly({holder->left()}, nb::none(), [=, own_memory = memory.memory] {
                  return open_file(holder, writes, [&](mount& m) {
                    return std::make_unique<arrays::file>(m, own_memory, to_open, to_tell, flags,
                                                          mode);
                  });
                });
            new (place) py_file(holder, std::move(file), writes, waits);
          },
          "mount"_a, "memory"_a, "path"_a, "name"_a, "flags"_a, "mode"_a)
      .def_prop_ro("closed", &py_file::closed)
      .def_prop_ro("descriptor", [](const py_file& f) { return f.get()->descriptor(); })
      .def("close", &py_file::close)
      .def("wait",
           [](const py_file& f) { f.wait(nb::none(), [](arrays::file& file) { file.wait(); }); })
      .def("check", [](const py_file& f) { f.get()->check(); })
      .def_prop_ro("failures", &py_file::failures)
      .def("sync",
           [](const py_file& f) { f.wait(nb::none(), [](arrays::file& file) { file.sync(); }); })
      .def(
          "truncate",
          [](const py_file& f, std::uint64_t size) {
            f.wait(nb::none(), [size](arrays::file& file) { file.truncate(size); });
          },
          "size"_a)
      .def("status",
           [](const py_file& f) {
             const auto [s, is_shared, is_written] =
                 f.wait(nb::none(), [](arrays::file& file) { return file.status(); });
             return nb::make_tuple(s.size, s.modified_ns, s.changed_ns, s.inode, s.device, s.mode,
                                   is_shared, is_written);
           })
      .def(
          "read",
          [](const py_file& f, std::uintptr_t to, std::uint64_t bytes, std::uint64_t offset,
             std::uintptr_t stream, nb::handle kept, const py_outcome* own) {
            f.start(kept, own, false, [=](arrays::file& file, arrays::outcome* outcome) {
              file.read(reinterpret_cast<char*>(to), bytes, offset, stream_at(stream), outcome);
            });
          },
          "to"_a, "bytes"_a, "offset"_a, "stream"_a, "kept"_a.none(), "outcome"_a.none())
      .def(
          "read_new",
          [](const py_file& f, const py_memory& memory, std::uint64_t bytes, std::uint64_t offset,
             std::uintptr_t stream) {
            const file_pointer file = f.get();
            return memory.own(stream_at(stream), [&] {
              void* const to = memory.memory->allocate(bytes, stream_at(stream));
              try {
                f.use_without_gil(*file, [&](arrays::file& own) {
                  own.read(static_cast<char*>(to), bytes, offset, stream_at(stream));
                });
              } catch (...) {
                memory.memory->free(to, stream_at(stream), false);
                throw;
              }
              return to;
            });
          },
          "memory"_a, "bytes"_a, "offset"_a, "stream"_a)
      .def(
          "write",
          [](const py_file& f, std::uintptr_t from, std::uint64_t bytes, std::uint64_t offset,
             bool appends, std::uintptr_t stream, nb::handle kept, const py_outcome* own) {
            f.start(kept, own, true, [=](arrays::file& file, arrays::outcome* outcome) {
              file.write(reinterpret_cast<const char*>(from), bytes, offset, appends,
                         stream_at(stream), outcome);
            });
          },
          "data"_a, "bytes"_a, "offset"_a, "appends"_a, "stream"_a, "kept"_a.none(),
          "outcome"_a.none())
      .def(
          "read_selection",
          [](const py_file& f, std::uintptr_t to, std::int64_t offset, const nb::tuple& before,
             const nb::tuple& behind, std::uint64_t run_bytes, std::uintptr_t list,
             std::uint64_t list_count, std::uint32_t item_bytes, bool is_signed,
             std::int64_t length, std::int64_t stride, int keep, std::uintptr_t stream,
             nb::handle kept, const py_outcome* own) {
            arrays::selection s;
            s.offset = offset;
            s.before_count = fill(s.before, before);
            s.behind_count = fill(s.behind, behind);
            s.run_bytes = run_bytes;
            s.list = {reinterpret_cast<const void*>(list),
                      list_count,
                      item_bytes,
                      is_signed,
                      length,
                      stride};
            f.start(kept, own, false, [=](arrays::file& file, arrays::outcome* outcome) {
              file.read(reinterpret_cast<char*>(to), s, static_cast<arrays::keep>(keep),
                        stream_at(stream), outcome);
            });
          },
          "to"_a, "offset"_a, "before"_a, "behind"_a, "run_bytes"_a, "list"_a, "list_count"_a,
          "item_bytes"_a, "is_signed"_a, "length"_a, "stride"_a, "keep"_a, "stream"_a,
          "kept"_a.none(), "outcome"_a.none());
}

}  // namespace gpufs::python

// Memory of a mount's device for Python: buffers that arrays own, and outcomes of calls.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "arrays/arrays.hpp"
#include "mount.hpp"

namespace gpufs::python {

inline void* stream_at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// Memory of a mount's device. It may outlive the mount.
class buffer {
 public:
  buffer(std::shared_ptr<arrays::device_memory> memory, void* data, void* stream)
      : memory_(std::move(memory)), data_(data), stream_(stream) {}
  ~buffer() {
    // After a fork there is no GPU in the child process.
    if (getpid() == owner_) memory_->free(data_, stream_, used_elsewhere_);
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  void* stream() const { return stream_; }
  arrays::device_memory& memory() const { return *memory_; }
  void note_use_elsewhere() { used_elsewhere_ = true; }

 private:
  const std::shared_ptr<arrays::device_memory> memory_;
  void* const data_;
  void* const stream_;  // orders the allocation and the free
  bool used_elsewhere_ = false;
  const pid_t owner_ = getpid();
};

struct py_buffer {
  std::shared_ptr<buffer> held;

  explicit py_buffer(std::shared_ptr<buffer> b) : held(std::move(b)) {}
  py_buffer(const py_buffer&) = delete;
  py_buffer& operator=(const py_buffer&) = delete;
  ~py_buffer() {
    const nanobind::gil_scoped_release released;
    held.reset();
  }
};

struct py_memory {
  std::shared_ptr<mount_holder> holder;
  std::shared_ptr<arrays::device_memory> memory;

  py_memory(std::shared_ptr<mount_holder> h, std::shared_ptr<arrays::device_memory> m)
      : holder(std::move(h)), memory(std::move(m)) {}
  py_memory(const py_memory&) = delete;
  py_memory& operator=(const py_memory&) = delete;
  ~py_memory() {
    const nanobind::gil_scoped_release released;  // frees pinned memory, which may wait for kernels
    memory.reset();
  }

  // Calls `made`, which allocates memory, without the GIL. Python owns the result.
  template <class Made>
  py_buffer* own(void* stream, const Made& made) const {
    holder->refuse_forked();
    std::shared_ptr<buffer> owned;
    {
      const nanobind::gil_scoped_release released;
      owned = std::make_shared<buffer>(memory, made(), stream);
    }
    return new py_buffer(std::move(owned));
  }
};

// The outcome of a call, shared with the call.
class py_outcome {
 public:
  explicit py_outcome(const py_memory& memory) : holder_(memory.holder) {
    holder_->refuse_forked();
    const nanobind::gil_scoped_release released;
    outcome_ = std::make_shared<arrays::outcome>(memory.memory);
  }
  py_outcome(const py_outcome&) = delete;
  py_outcome& operator=(const py_outcome&) = delete;
  ~py_outcome() {
    if (holder_->forked()) {  // the memory belongs to the parent, so it is never released here
      (void)new std::shared_ptr<arrays::outcome>(std::move(outcome_));
      return;
    }
    const nanobind::gil_scoped_release released;
    outcome_.reset();
  }

  void wait() const {
    holder_->refuse_forked();
    const nanobind::gil_scoped_release released;
    outcome_->wait();
  }
  const std::shared_ptr<arrays::outcome>& shared() const { return outcome_; }

 private:
  const std::shared_ptr<mount_holder> holder_;
  std::shared_ptr<arrays::outcome> outcome_;
};

void bind_memory(nanobind::module_& m);

}  // namespace gpufs::python

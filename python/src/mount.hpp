// A gpufs::mount for Python: it can be closed while other threads use it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpufs/error.hpp"
#include "gpufs/gpufs.hpp"
#include "interruptible.hpp"

namespace gpufs::python {

// Shared by the Python object and its background work. All methods may be called from any thread of
// the process that made it, without the GIL.
class mount_holder {
 public:
  explicit mount_holder(const mount_options& options) : mount_(std::make_unique<mount>(options)) {}
  ~mount_holder() { close(); }
  mount_holder(const mount_holder&) = delete;
  mount_holder& operator=(const mount_holder&) = delete;

  // Throws std::runtime_error in a forked process, which has neither the service's threads nor the
  // GPU's context.
  void refuse_forked() const {
    if (forked())
      throw std::runtime_error(
          "this gpufs mount belongs to the parent process: make one after fork()");
  }

  bool forked() const noexcept { return getpid() != owner_; }

  // Calls f(mount). The mount stays open during the call. Throws std::invalid_argument if it is
  // closed.
  template <class F>
  auto use(F&& f) {
    refuse_forked();
    const std::shared_lock lock(in_use_);
    return std::forward<F>(f)(opened());
  }

  // Like use(), for calls that need exclusive access: waits until no other thread uses the mount.
  template <class F>
  auto use_alone(F&& f) {
    refuse_forked();
    const std::unique_lock lock(in_use_);
    return std::forward<F>(f)(opened());
  }

  // Waits until no thread uses the mount, then unmounts it. A second call does nothing. In a forked
  // process the memory is leaked: the destructor would wait for threads that do not exist.
  void close() noexcept {
    if (forked()) {
      (void)mount_.release();
      return;
    }
    const std::unique_lock lock(in_use_);
    mount_.reset();
    closed_ = true;
  }

  // Like close(), but throws the errors of gpufs::mount::unmount(). The mount is closed in any
  // case.
  void unmount() {
    if (forked()) return close();
    const std::unique_lock lock(in_use_);
    if (mount_ == nullptr) return;
    std::unique_ptr<mount> ended = std::move(mount_);
    std::exception_ptr failure;
    try {
      ended->unmount();
    } catch (...) {
      failure = std::current_exception();
    }
    last_errors_ = ended->file_errors();
    if (failure == nullptr) failure = std::exchange(lost_, nullptr);
    ended.reset();
    closed_ = true;
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  // Keeps the error of a file that was closed without a caller. unmount() throws the first one,
  // unless it has an error of its own.
  void keep_error(std::exception_ptr error) noexcept {
    const std::lock_guard lock(lost_latch_);
    if (lost_ == nullptr) lost_ = std::move(error);
  }
  // Throws the kept error, unless it was thrown before. It says more than unmount() about a file.
  void throw_kept() {
    if (forked()) return;
    std::exception_ptr kept;
    {
      const std::lock_guard lock(lost_latch_);
      kept = std::exchange(lost_, nullptr);
    }
    if (kept != nullptr) std::rethrow_exception(kept);
  }

  // Works after unmount(), too.
  file_error_list file_errors() {
    refuse_forked();
    const std::shared_lock lock(in_use_);
    return mount_ != nullptr ? mount_->file_errors() : last_errors_;
  }

  // Does not wait. False while another thread closes the mount.
  bool closed() const noexcept { return closed_ || forked(); }

  // The calls that continue without a caller.
  const std::shared_ptr<leftovers>& left() const { return left_; }
  // Marks the mount as closed. close() is called when the leftover calls have ended.
  void close_later() noexcept { closed_ = true; }

 private:
  mount& opened() const {
    if (mount_ == nullptr) throw std::invalid_argument("the gpufs mount is closed");
    return *mount_;
  }

  const pid_t owner_ = getpid();
  std::shared_mutex
      in_use_;  // guards mount_: shared by users, exclusive for close(), unmount() and use_alone()
  std::unique_ptr<mount> mount_;
  file_error_list last_errors_;  // of the unmounted mount; guarded by in_use_
  std::mutex lost_latch_;        // guards lost_, except in unmount(), which has exclusive access
  std::exception_ptr lost_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<leftovers> left_ = std::make_shared<leftovers>();
};

// Calls f(mount), which a signal handler may interrupt (see interruptibly()): f owns everything
// that it uses, except for memory of `kept`.
template <class F>
auto use_interruptibly(const std::shared_ptr<mount_holder>& holder, nanobind::handle kept, F f) {
  holder->refuse_forked();
  return interruptibly({holder->left()}, kept,
                       [holder, own = std::move(f)]() mutable { return holder->use(own); });
}

// The class gpufs._core.Mount.
struct py_mount {
  std::shared_ptr<mount_holder> holder;

  explicit py_mount(std::shared_ptr<mount_holder> h) : holder(std::move(h)) {}
  py_mount(const py_mount&) = delete;
  py_mount& operator=(const py_mount&) = delete;
  // Closing waits for the GPU and for a running search. Other Python threads continue during that
  // time.
  ~py_mount() {
    const nanobind::gil_scoped_release released;
    holder.reset();
  }
};

void bind_mount(nanobind::module_& m);

}  // namespace gpufs::python

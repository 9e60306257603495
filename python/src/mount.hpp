// gpufs::mount as Python holds it: closable, and safe against threads that use it while another
// closes it.
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

// Shared by the Python object and what works with it in the background. Its methods may be called
// from any thread of the process that made it, without the GIL.
class mount_holder {
 public:
  explicit mount_holder(const mount_options& options) : mount_(std::make_unique<mount>(options)) {}
  ~mount_holder() { close(); }
  mount_holder(const mount_holder&) = delete;
  mount_holder& operator=(const mount_holder&) = delete;

  // Throws std::runtime_error in a process that was forked off: the service's threads and the GPU's
  // context are not there.
  void refuse_forked() const {
    if (forked())
      throw std::runtime_error(
          "this gpufs mount belongs to the parent process: make one after fork()");
  }

  bool forked() const noexcept { return getpid() != owner_; }

  // Calls f(mount), during which the mount stays open. Throws std::invalid_argument when it is
  // closed.
  template <class F>
  auto use(F&& f) {
    refuse_forked();
    const std::shared_lock lock(in_use_);
    return std::forward<F>(f)(opened());
  }

  // The same, for calls that must have the mount for themselves: waits until nobody else uses it.
  template <class F>
  auto use_alone(F&& f) {
    refuse_forked();
    const std::unique_lock lock(in_use_);
    return std::forward<F>(f)(opened());
  }

  // Waits until nobody uses it, then unmounts. Nothing happens the second time. In a forked process
  // the memory is left as it is: the destructor would wait for threads that are not there.
  void close() noexcept {
    if (forked()) {
      (void)mount_.release();
      return;
    }
    const std::unique_lock lock(in_use_);
    mount_.reset();
    closed_ = true;
  }

  // As close(), and throws what gpufs::mount::unmount() throws. It is closed in any case.
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
    // Of one file the error that was kept says more.
    if (failure == nullptr || is_about_same_file(failure, lost_)) failure = lost_;
    ended.reset();
    closed_ = true;
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  // Of a file that was closed when nobody was left who could be told: unmount() throws the first,
  // unless it has one of its own.
  void keep_error(std::exception_ptr error) noexcept {
    const std::lock_guard lock(lost_latch_);
    if (lost_ == nullptr) lost_ = std::move(error);
  }

  // Also after unmount().
  file_error_list file_errors() {
    refuse_forked();
    const std::shared_lock lock(in_use_);
    return mount_ != nullptr ? mount_->file_errors() : last_errors_;
  }

  // Also false while it is being closed. Does not wait.
  bool closed() const noexcept { return closed_ || forked(); }

  // Calls that use it without a caller.
  const std::shared_ptr<leftovers>& left() const { return left_; }
  // From now on it counts as closed; close() comes when the calls that are left over have ended.
  void close_later() noexcept { closed_ = true; }

 private:
  static std::string path_of(const std::exception_ptr& failure) {
    if (failure == nullptr) return {};
    try {
      std::rethrow_exception(failure);
    } catch (const error& e) {
      return e.path();
    } catch (...) {
      return {};
    }
  }
  static bool is_about_same_file(const std::exception_ptr& one, const std::exception_ptr& other) {
    const std::string path = path_of(one);
    return !path.empty() && path == path_of(other);
  }

  mount& opened() const {
    if (mount_ == nullptr) throw std::invalid_argument("the gpufs mount is closed");
    return *mount_;
  }

  const pid_t owner_ = getpid();
  std::shared_mutex
      in_use_;  // guards mount_: shared by users, exclusive for close(), unmount() and use_alone()
  std::unique_ptr<mount> mount_;
  file_error_list last_errors_;  // of the mount that was unmounted; guarded by in_use_
  std::mutex lost_latch_;        // guards lost_, but for unmount(), which has the mount for itself
  std::exception_ptr lost_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<leftovers> left_ = std::make_shared<leftovers>();
};

// Gives f(mount), which a signal handler may interrupt (interruptibly()): f owns what it uses, but
// for memory of `kept`.
template <class F>
auto use_interruptibly(const std::shared_ptr<mount_holder>& holder, nanobind::handle kept, F f) {
  holder->refuse_forked();
  return interruptibly({holder->left()}, kept,
                       [holder, own = std::move(f)]() mutable { return holder->use(own); });
}

// What Python's gpufs._core.Mount is.
struct py_mount {
  std::shared_ptr<mount_holder> holder;

  explicit py_mount(std::shared_ptr<mount_holder> h) : holder(std::move(h)) {}
  py_mount(const py_mount&) = delete;
  py_mount& operator=(const py_mount&) = delete;
  // Closing waits for the GPU, and for a search that still runs: other Python threads go on
  // meanwhile.
  ~py_mount() {
    const nanobind::gil_scoped_release released;
    holder.reset();
  }
};

void bind_mount(nanobind::module_& m);

}  // namespace gpufs::python

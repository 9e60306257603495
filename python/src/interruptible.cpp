#include "interruptible.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <system_error>

#include "gpufs/base/start_thread.hpp"

namespace nb = nanobind;

namespace gpufs::python {

void leftovers::add() {
  const std::lock_guard lock(latch_);
  ++count_;
}

void leftovers::remove() noexcept {
  for (;;) {
    std::vector<std::function<void()>> all;
    {
      const std::lock_guard lock(latch_);
      if (count_ > 1 || put_off_.empty()) {
        --count_;
        return;
      }
      all.swap(put_off_);
    }
    // count_ is still positive here, so work that is put off now runs after this work.
    for (const auto& work : all) work();
  }
}

bool leftovers::put_off(std::function<void()> work) {
  const std::lock_guard lock(latch_);
  if (count_ == 0) return false;
  put_off_.push_back(std::move(work));
  return true;
}

namespace {

constexpr std::chrono::milliseconds patience{50};

// Objects that ended calls have kept. The calls' threads cannot release them: a thread that takes
// the GIL while the interpreter exits never returns.
struct objects {
  std::mutex latch;
  std::vector<PyObject*> all;
};
// Never destroyed, because threads may use it until the process ends.
objects& released_later() {
  static auto* const made = new objects;
  return *made;
}

// Called with the GIL.
void release_objects() {
  std::vector<PyObject*> all;
  {
    const std::lock_guard lock(released_later().latch);
    all.swap(released_later().all);
  }
  for (PyObject* const object : all) Py_DECREF(object);
}

struct running_call {
  std::function<void()> work;
  std::mutex latch;  // guards all fields below
  std::function<void()> unheard;
  std::condition_variable ended;
  bool is_done = false;
  bool is_left = false;      // the caller has left
  leftover_of owners;        // set when the caller leaves
  PyObject* kept = nullptr;  // a reference, set when the caller leaves

  void run() {
    work();
    work = nullptr;  // releases the objects that it owns in this thread
    const std::lock_guard lock(latch);
    is_done = true;
    if (is_left && unheard) unheard();
    unheard = nullptr;  // releases its objects before the caller continues, or in this thread
    ended.notify_one();
    if (!is_left) return;
    for (const auto& owner : owners) owner->remove();
    const std::lock_guard objects_lock(released_later().latch);
    released_later().all.push_back(kept);
  }

  // Waits up to `patience`. Returns whether the work is done.
  bool wait() {
    std::unique_lock lock(latch);
    return ended.wait_for(lock, patience, [this] { return is_done; });
  }

  // Called with the GIL when the caller leaves. Returns false if the work is already done.
  bool leave(const leftover_of& to, nb::handle object) {
    const std::lock_guard lock(latch);
    if (is_done) return false;
    for (const auto& owner : to) owner->add();
    owners = to;
    kept = object.inc_ref().ptr();
    is_left = true;
    return true;
  }
};

// Python handles signals in the first thread of the process. After a fork this is the thread that
// forked.
bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

}  // namespace

bool detail::run_beside(const leftover_of& owners, nb::handle kept, std::function<void()> work,
                        const std::function<void()>& meanwhile,
                        const std::function<void()>& unheard) {
  release_objects();
  if (!is_main_thread()) return false;
  const auto call = std::make_shared<running_call>();
  call->work = std::move(work);
  call->unheard = unheard;
  try {
    start_thread([call] { call->run(); }).detach();
  } catch (const std::system_error&) {  // no more threads can be started
    return false;
  }
  try {
    for (;;) {
      {
        const nb::gil_scoped_release released;
        if (call->wait()) return true;
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (meanwhile) meanwhile();
    }
  } catch (...) {
    if (!call->leave(owners, kept) && unheard) unheard();
    throw;
  }
}

}  // namespace gpufs::python

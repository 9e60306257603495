// Waiting calls that end at once when a Python signal handler raises an exception (Ctrl-C).
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpufs::python {

// The calls of a file or a mount that continue without a caller. Thread-safe.
class leftovers {
 public:
  void add();
  // Called by the thread of a call that has ended. The last one executes the work that was put off,
  // in its order.
  void remove() noexcept;
  // Puts `work`, which must not throw, off until all calls have ended. Returns false, and does not
  // take the work, if there is no such call.
  bool put_off(std::function<void()> work);

 private:
  std::mutex latch_;  // guards all fields below
  unsigned count_ = 0;
  std::vector<std::function<void()>> put_off_;
};

// The owners of a leftover call, in the order in which it is removed from them.
using leftover_of = std::vector<std::shared_ptr<leftovers>>;

namespace detail {
// Runs `work`, which does not throw, in a new thread, and waits for it without the GIL. Every 50 ms
// it takes the GIL, lets Python handle signals, and then calls `meanwhile`, if there is one. If one
// of these raises, it throws nb::python_error while `work` continues, and `unheard`, which does not
// throw, is called after the work. Returns true: the work is done. Returns false, without running
// it: this is not the main thread, which alone handles signals, or no thread can be started.
bool run_beside(const leftover_of& owners, nanobind::handle kept, std::function<void()> work,
                const std::function<void()>& meanwhile, const std::function<void()>& unheard);
}  // namespace detail

// Returns the result of work(), and throws its exceptions. Called with the GIL; `work` runs without
// it, perhaps in another thread. Throws nb::python_error as soon as a signal handler, or
// `meanwhile`, raises. The work then continues. It must therefore own everything that it uses,
// except for memory of Python objects that `kept` holds. A later call releases `kept`, with the
// GIL. An exception of the continued work is passed to `unheard`, which does not throw.
template <class Work>
auto interruptibly(const leftover_of& owners, nanobind::handle kept, Work work,
                   const std::function<void()>& meanwhile = {},
                   std::function<void(const std::exception_ptr&)> unheard = {})
    -> std::invoke_result_t<Work&> {
  using value = std::invoke_result_t<Work&>;
  struct outcome {
    std::optional<std::conditional_t<std::is_void_v<value>, bool, value>> result;
    std::exception_ptr error;
  };
  const auto made = std::make_shared<outcome>();
  auto guarded = [made, own = std::make_shared<Work>(std::move(work))] {
    try {
      if constexpr (std::is_void_v<value>) (*own)();
      else made->result.emplace((*own)());
    } catch (...) {
      made->error = std::current_exception();
    }
  };
  std::function<void()> tell;
  if (unheard) {
    tell = [made, own = std::move(unheard)] {
      if (made->error != nullptr) own(made->error);
    };
  }
  if (!detail::run_beside(owners, kept, guarded, meanwhile, tell)) {
    const nanobind::gil_scoped_release released;
    guarded();
  }
  if (made->error != nullptr) std::rethrow_exception(made->error);
  if constexpr (!std::is_void_v<value>) return std::move(*made->result);
}

}  // namespace gpufs::python

// Calls that wait, which a signal handler of Python that raises (Ctrl-C) ends at once.
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

// The calls that go on without their caller, of a file or of a mount. Thread-safe.
class leftovers {
 public:
  void add();
  // By the thread of a call that has ended. The last one does what was put off, in the order in
  // which it came.
  void remove() noexcept;
  // Puts `work` off until all of them have ended; it may throw nothing. False where there is none:
  // then it is not taken.
  bool put_off(std::function<void()> work);

 private:
  std::mutex latch_;  // guards all below
  unsigned count_ = 0;
  std::vector<std::function<void()>> put_off_;
};

// Whose leftover a call becomes, in the order in which it is removed from them again.
using leftover_of = std::vector<std::shared_ptr<leftovers>>;

namespace detail {
// Runs `work`, which throws nothing, in a thread of its own, and waits for it without the GIL.
// Every 50 ms it takes the GIL, and lets Python handle signals and then runs `meanwhile`, if there
// is one. When one of these raises, throws nb::python_error while `work` goes on, and `unheard`
// follows when it has ended; it throws nothing. True: done. False: this is not the main thread,
// which alone handles signals, or there can be no other: nothing is done.
bool run_beside(const leftover_of& owners, nanobind::handle kept, std::function<void()> work,
                const std::function<void()>& meanwhile, const std::function<void()>& unheard);
}  // namespace detail

// Gives what work() gives, and throws what it throws; it runs without the GIL, maybe in another
// thread. With the GIL. Throws nb::python_error as soon as a signal handler, or `meanwhile`,
// raises. Then the work goes on: so it owns all that it uses, except for memory of Python's
// objects, of which `kept` is one that has them all. That one is released, with the GIL, by a later
// call. What the work throws then is given to `unheard`, which throws nothing.
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

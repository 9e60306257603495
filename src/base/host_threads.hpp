// Threads of the host that may hang: in a call of a backend, of a sink, or of a driver.
//
// The owner waits for them until a deadline. What has not ended by then is left behind, and then
// everything that the threads use must stay for ever.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gpufs {

// A moment at which a wait is given up. `never`: no deadline.
//
// Only time in which the process runs counts, because a stop (a signal, a debugger, a frozen
// container) must cost time and no data. So all deadlines share a clock that goes on when any of
// them is looked at, each time by `look_ns_max` at most. A waiter looks at least every `look_ns`.
class deadline {
 public:
  static constexpr std::uint64_t never = ~std::uint64_t{0};
  static constexpr std::uint64_t look_ns = 50'000'000;
  static constexpr std::uint64_t look_ns_max = 2 * look_ns;
  static deadline after(std::uint64_t ns);
  std::uint64_t left_ns() const;
  // The one that comes first.
  deadline or_after(std::uint64_t ns) const;

 private:
  explicit deadline(std::uint64_t end_ns) : end_ns_(end_ns) {}
  std::uint64_t end_ns_;  // by the shared clock
};

// Used by one thread at a time.
class host_threads {
 public:
  host_threads() = default;
  // Waits for all threads, without a deadline; for none if leave() was called.
  ~host_threads();
  host_threads(const host_threads&) = delete;
  host_threads& operator=(const host_threads&) = delete;

  // Throws gpufs::error EAGAIN when the system gives no thread (`what` says for what), or
  // std::bad_alloc. `body` must not throw. The thread gets none of the program's signals.
  void start(const char* what, std::function<void()> body);
  // True when all threads have ended, false at the deadline. After true no thread is left that uses
  // anything.
  [[nodiscard]] bool wait_until(const deadline& end);
  // Leaves the threads that still run to themselves.
  void leave() noexcept;
  bool empty() const { return threads_.empty(); }

 private:
  // Outlives this object while a thread that was left behind runs.
  struct progress {
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t running = 0;  // guarded by mutex
  };
  const std::shared_ptr<progress> progress_ = std::make_shared<progress>();
  std::vector<std::thread> threads_;
};

// A thread that makes one call, so that the caller can stop waiting for it. It exists from the
// beginning, because a thread may not be had at the end.
class spare_thread {
 public:
  // As host_threads::start.
  explicit spare_thread(const char* what);
  ~spare_thread();  // waits for the call, without a deadline; not if run() gave up
  spare_thread(const spare_thread&) = delete;
  spare_thread& operator=(const spare_thread&) = delete;

  // Has the thread make the call, once. False when it has not returned by the deadline; then what
  // it uses must stay.
  [[nodiscard]] bool run(void (*call)(void*), void* argument, const deadline& end);
  // The thread is not needed any more. It ends by itself; nothing waits for it.
  void dismiss();

 private:
  // Outlives this object if the call was given up.
  struct job {
    std::mutex mutex;
    std::condition_variable wake;
    bool is_asked = false;  // guarded by mutex, as the next two
    void (*call)(void*) = nullptr;
    void* argument = nullptr;
  };
  void ask(void (*call)(void*), void* argument);

  const std::shared_ptr<job> job_ = std::make_shared<job>();
  host_threads thread_;
};

}  // namespace gpufs

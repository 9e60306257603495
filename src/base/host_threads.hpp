// Host threads that may hang, in a call of a backend, a sink, or a driver.
//
// The owner waits for them until a deadline, then abandons the threads that have not ended.
// Everything that those threads use must then never be freed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gpufs {

// The time at which a wait gives up. `never`: no deadline.
//
// It counts only time in which the process runs: a stop (a signal, a debugger, a frozen container)
// must cost time but no data. So all deadlines share a clock that advances only when a thread
// checks a deadline, by `look_ns_max` at most. A waiter checks at least every `look_ns`.
class deadline {
 public:
  static constexpr std::uint64_t never = ~std::uint64_t{0};
  static constexpr std::uint64_t look_ns = 50'000'000;
  static constexpr std::uint64_t look_ns_max = 2 * look_ns;
  static deadline after(std::uint64_t ns);
  std::uint64_t left_ns() const;
  // The earlier of this deadline and `after(ns)`.
  deadline or_after(std::uint64_t ns) const;

 private:
  explicit deadline(std::uint64_t end_ns) : end_ns_(end_ns) {}
  std::uint64_t end_ns_;  // by the shared clock
};

// Used by one thread at a time.
class host_threads {
 public:
  host_threads() = default;
  // Waits for all threads without a deadline. After leave() it waits for none.
  ~host_threads();
  host_threads(const host_threads&) = delete;
  host_threads& operator=(const host_threads&) = delete;

  // Starts a thread for `body`, which must not throw. The thread receives none of the program's
  // signals. Throws gpufs::error (EAGAIN; `what` names the purpose) if the system cannot create a
  // thread, or std::bad_alloc.
  void start(const char* what, std::function<void()> body);
  // Waits for all threads. Returns true when all have ended; then no thread uses anything any more.
  // Returns false at the deadline.
  [[nodiscard]] bool wait_until(const deadline& end);
  // Abandons the threads that still run.
  void leave() noexcept;
  bool empty() const { return threads_.empty(); }

 private:
  // Outlives this object while an abandoned thread runs.
  struct progress {
    std::mutex mutex;
    std::condition_variable ended;
    std::size_t running = 0;  // guarded by mutex
  };
  const std::shared_ptr<progress> progress_ = std::make_shared<progress>();
  std::vector<std::thread> threads_;
};

// A thread that makes one call, so that the caller can stop waiting for it. It starts with the
// object, because the system may refuse a new thread later.
class spare_thread {
 public:
  // Throws as host_threads::start().
  explicit spare_thread(const char* what);
  // Waits for the call without a deadline, unless run() gave up.
  ~spare_thread();
  spare_thread(const spare_thread&) = delete;
  spare_thread& operator=(const spare_thread&) = delete;

  // Makes the thread call `call(argument)`, once. Returns false if the call has not returned by the
  // deadline; then everything that it uses must stay.
  [[nodiscard]] bool run(void (*call)(void*), void* argument, const deadline& end);
  // Releases the thread without a call. It ends by itself; no thread waits for it.
  void dismiss();

 private:
  // Outlives this object if run() gave up.
  struct job {
    std::mutex mutex;
    std::condition_variable wake;
    bool is_asked = false;  // guarded by mutex, like the next two
    void (*call)(void*) = nullptr;
    void* argument = nullptr;
  };
  void ask(void (*call)(void*), void* argument);

  const std::shared_ptr<job> job_ = std::make_shared<job>();
  host_threads thread_;
};

}  // namespace gpufs

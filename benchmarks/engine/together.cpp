#include "engine/together.hpp"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace gpufs::bench {

sample run_together(unsigned threads, const std::function<void(unsigned, start_line&)>& work) {
  std::optional<stopwatch> watch;
  start_line::barrier all(threads, start_clock{&watch});
  std::mutex failure_mutex;  // guards failure
  std::exception_ptr failure;
  std::vector<std::jthread> pool;
  pool.reserve(threads);
  for (unsigned t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      start_line start(all);
      try {
        work(t, start);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        failure = std::current_exception();
      }
    });
  }
  for (std::jthread& thread : pool) thread.join();
  sample s;
  s.seconds = watch->seconds();
  s.cpu_seconds = watch->cpu_seconds();
  if (failure != nullptr) std::rethrow_exception(failure);
  return s;
}

}  // namespace gpufs::bench

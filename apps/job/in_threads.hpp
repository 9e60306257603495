// Divides work among host threads.
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace gpufs::job {

// Calls work(t) for each t below `threads`, each in its own thread, and waits for all of them. Then
// rethrows one of their exceptions.
template <class Work>
void in_threads(std::size_t threads, const Work& work) {
  std::vector<std::exception_ptr> thrown(threads);
  {
    std::vector<std::jthread> pool;
    for (std::size_t t = 0; t < threads; ++t) {
      pool.emplace_back([&work, &error = thrown[t], t] {
        try {
          work(t);
        } catch (...) {
          error = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : thrown) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace gpufs::job

// Divides work among host threads.
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "gpufs/base/start_thread.hpp"

namespace gpufs::job {

// Calls work(t) for each t below `threads`, each in its own thread, and waits for all of them. Then
// rethrows one of their exceptions.
template <class Work>
void in_threads(std::size_t threads, const Work& work) {
  std::vector<std::exception_ptr> thrown(threads);
  {
    struct joined_threads {
      std::vector<std::thread> all;
      ~joined_threads() {
        for (std::thread& thread : all) thread.join();
      }
    } pool;
    pool.all.reserve(threads);
    for (std::size_t t = 0; t < threads; ++t) {
      pool.all.push_back(start_thread([&work, &error = thrown[t], t] {
        try {
          work(t);
        } catch (...) {
          error = std::current_exception();
        }
      }));
    }
  }
  for (const std::exception_ptr& error : thrown) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace gpufs::job

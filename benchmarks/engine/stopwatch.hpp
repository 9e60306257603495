// Measures wall time, and the host CPU time that this process uses meanwhile.
#pragma once

#include <sys/resource.h>

#include <chrono>

namespace gpufs::bench {

class stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(clock::now() - begin_).count(); }
  double cpu_seconds() const { return cpu_now() - cpu_begin_; }

 private:
  using clock = std::chrono::steady_clock;

  static double cpu_now() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  const clock::time_point begin_ = clock::now();
  const double cpu_begin_ = cpu_now();
};

}  // namespace gpufs::bench

/** What the checks of results share. */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

namespace gdev_bench {

/** Calls `work(begin, end)` for parts of [0, count), on all processors at once. Waits for them. */
template <typename Work>
void in_parallel(std::size_t count, const Work& work) {
  const std::size_t parts = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < parts; ++i) {
    threads.emplace_back(
        [&work, count, parts, i] { work(count * i / parts, count * (i + 1) / parts); });
  }
  for (std::thread& one : threads) {
    one.join();
  }
}

/** Returns whether all elements differ by at most `absolute` + `relative` * |expected|. No NaN. */
inline bool are_close(const std::vector<float>& found, const std::vector<float>& expected,
                      float absolute, float relative) {
  return std::equal(found.begin(), found.end(), expected.begin(), expected.end(),
                    [&](float one, float other) {
                      return std::abs(one - other) <= absolute + relative * std::abs(other);
                    });
}

}  // namespace gdev_bench

// All scripts of a fixed number of steps that a rule allows, in a fixed order; each has a number.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace gpufs::testing {

class script_space {
 public:
  // What of the steps so far decides which may follow. The first step's is 0.
  using state = std::uint32_t;
  // The state after `step`; none where the rule forbids it. `left`: steps that follow.
  using rule = std::function<std::optional<state>(state, char step, unsigned left)>;

  script_space(std::string steps, unsigned length, rule allows)
      : steps_(std::move(steps)), length_(length), allows_(std::move(allows)),
        count_(count(0, length)) {}

  std::uint64_t count() const { return count_; }

  // `number` counts from 0.
  std::string script(std::uint64_t number) {
    std::string text;
    state at = 0;
    for (unsigned left = length_; left-- != 0;) {
      for (const char step : steps_) {
        const std::optional<state> next = allows_(at, step, left);
        if (!next) continue;
        const std::uint64_t of_step = count(*next, left);
        if (number >= of_step) {
          number -= of_step;
          continue;
        }
        text += step;
        at = *next;
        break;
      }
    }
    return text;
  }

  // As script(), in another order: neighbours have little in common. Of less than 2^32 scripts.
  std::string scattered(std::uint64_t number) {
    // A prime that does not divide the count: all are met.
    std::uint64_t stride = 2'654'435'761;
    while (count_ % stride == 0) stride += 2;
    return script(number % count_ * (stride % count_) % count_);
  }

 private:
  std::uint64_t count(state at, unsigned left) {
    if (left == 0) return 1;
    const auto [known, is_new] = counts_.try_emplace({at, left}, 0);
    if (!is_new) return known->second;
    std::uint64_t sum = 0;
    for (const char step : steps_) {
      if (const std::optional<state> next = allows_(at, step, left - 1))
        sum += count(*next, left - 1);
    }
    return counts_[{at, left}] = sum;
  }

  const std::string steps_;
  const unsigned length_;
  const rule allows_;
  std::map<std::pair<state, unsigned>, std::uint64_t> counts_;
  const std::uint64_t count_;
};

}  // namespace gpufs::testing

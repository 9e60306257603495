#include "interposer/call_counts.hpp"

#include <algorithm>

namespace gdev {

namespace {

constexpr std::size_t own_lines = 255;

// The last line is for the threads beyond those that have their own.
std::array<call_line, own_lines + 1> lines;
std::array<std::atomic<bool>, own_lines> taken;

/** Holds a line for as long as its thread lives. */
class line_holder {
 public:
  line_holder() noexcept {
    for (std::size_t i = 0; i < own_lines; ++i) {
      // Acquire, with the release below: the counts of the thread that had the line before.
      if (!taken[i].exchange(true, std::memory_order_acquire)) {
        index_ = i;
        return;
      }
    }
  }
  line_holder(const line_holder&) = delete;
  line_holder& operator=(const line_holder&) = delete;
  ~line_holder() {
    if (index_ < own_lines) {
      // A call later in the thread's end counts in the shared line.
      const std::size_t index = index_;
      index_ = own_lines;
      taken[index].store(false, std::memory_order_release);
    }
  }

  [[nodiscard]] std::size_t index() const noexcept { return index_; }

 private:
  std::size_t index_ = own_lines;
};

thread_local line_holder holder;

}  // namespace

void count_call(function_class kind) noexcept {
  const std::size_t index = holder.index();
  std::atomic<std::uint64_t>& count = lines[index].calls[static_cast<std::size_t>(kind)];
  if (index == own_lines) {
    count.fetch_add(1, std::memory_order_relaxed);
  } else {
    // No other thread writes here.
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

std::uint64_t count_calls(function_class kind) noexcept {
  std::uint64_t sum = 0;
  for (const call_line& line : lines) {
    sum += line.calls[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace gdev

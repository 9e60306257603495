// Free places of a table, given out in the order in which they came back: so that the name of what was in a place comes again as late as
// can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpufs {

// Not thread-safe.
class place_queue {
 public:
  std::size_t size() const { return size_; }
  // From then on places below `count` can be pushed, without allocating.
  void make_room(std::size_t count) {
    if (next_.size() < count) next_.resize(count);
  }
  void push(std::uint32_t place) noexcept {
    if (size_++ == 0) first_ = place;
    else next_[last_] = place;
    last_ = place;
  }
  // Only if there is one.
  std::uint32_t front() const { return first_; }
  void pop() noexcept {
    first_ = next_[first_];
    --size_;
  }

 private:
  std::vector<std::uint32_t> next_;  // of each place in the queue but the last
  std::uint32_t first_ = 0, last_ = 0;
  std::size_t size_ = 0;
};

}  // namespace gpufs

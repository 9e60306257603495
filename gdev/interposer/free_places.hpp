/**
 * Which places of a store are free: places in segments, merged with their free neighbours.
 *
 * Pure bookkeeping, for one thread at a time. A place lies in one segment, also where two segments
 * touch.
 *
 * Invariants:
 * 1. free_ and by_size_ have the same places, which do not overlap.
 * 2. Two free places of a segment do not touch.
 */
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gdev {

class free_places {
 public:
  /** Adds a segment, which is free. It overlaps none that is there. */
  void add(std::uint64_t begin, std::uint64_t bytes) {
    segments_.emplace(begin, bytes);
    insert(begin, bytes);
  }

  /** Takes the smallest place that suffices, and of equal ones the lowest. */
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes) {
    const auto found = by_size_.lower_bound({bytes, 0});
    if (found == by_size_.end()) {
      return std::nullopt;
    }
    const auto [size, begin] = *found;
    erase(begin, size);
    if (size > bytes) {
      insert(begin + bytes, size - bytes);
    }
    return begin;
  }

  /** Gives back what take() returned, or a part of it. */
  void give(std::uint64_t begin, std::uint64_t bytes) {
    const auto segment = std::prev(segments_.upper_bound(begin));
    const auto after = free_.find(begin + bytes);
    if (after != free_.end() && after->first < segment->first + segment->second) {
      const auto [next, size] = *after;
      erase(next, size);
      bytes += size;
    }
    const auto next = free_.lower_bound(begin);
    if (next != free_.begin()) {
      const auto [before, size] = *std::prev(next);
      if (before + size == begin && before >= segment->first) {
        erase(before, size);
        begin = before;
        bytes += size;
      }
    }
    insert(begin, bytes);
  }

  /** Forgets the segments of which nothing is taken. Returns where they begin. */
  [[nodiscard]] std::vector<std::uint64_t> remove_free_segments() {
    std::vector<std::uint64_t> removed;
    for (const auto& [begin, bytes] : segments_) {
      if (const auto found = free_.find(begin); found != free_.end() && found->second == bytes) {
        removed.push_back(begin);
      }
    }
    for (const std::uint64_t begin : removed) {
      erase(begin, segments_.at(begin));
      segments_.erase(begin);
    }
    return removed;
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  void insert(std::uint64_t begin, std::uint64_t bytes) {
    free_.emplace(begin, bytes);
    by_size_.emplace(bytes, begin);
    bytes_ += bytes;
  }

  void erase(std::uint64_t begin, std::uint64_t bytes) {
    free_.erase(begin);
    by_size_.erase({bytes, begin});
    bytes_ -= bytes;
  }

  std::map<std::uint64_t, std::uint64_t> segments_;  // bytes, by their begin
  std::map<std::uint64_t, std::uint64_t> free_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // bytes, begin
  std::uint64_t bytes_ = 0;
};

}  // namespace gdev

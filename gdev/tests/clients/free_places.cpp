/**
 * Random takes and gives of free_places against a naive model: free_places SEED COUNT.
 *
 * The model is a flag for each unit of each segment. Segments touch, and so do places. Ends with 1
 * and a line where the two differ.
 */
#include "interposer/free_places.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::uint64_t unit = 4096;
constexpr std::uint64_t segment_units = 32;
constexpr std::uint64_t first = 7 * unit;

class model {
 public:
  void add() { is_free_.insert(is_free_.end(), segment_units, true); }

  /** Returns where the smallest free place of `units` or more begins; of equal ones the lowest. */
  [[nodiscard]] std::optional<std::uint64_t> best(std::uint64_t units) const {
    std::optional<std::uint64_t> found;
    std::uint64_t least = segment_units + 1;
    for (std::uint64_t at = 0; at < is_free_.size();) {
      const std::uint64_t end = end_of_place(at);
      if (end - at >= units && end - at < least) {
        least = end - at;
        found = at;
      }
      at = std::max(end, at + 1);
    }
    return found;
  }

  void set(std::uint64_t begin, std::uint64_t units, bool is_free) {
    std::fill_n(is_free_.begin() + static_cast<std::ptrdiff_t>(begin), units, is_free);
  }

  [[nodiscard]] std::uint64_t count() const {
    return static_cast<std::uint64_t>(std::count(is_free_.begin(), is_free_.end(), true));
  }

  [[nodiscard]] std::uint64_t segments() const { return is_free_.size() / segment_units; }

 private:
  [[nodiscard]] std::uint64_t end_of_place(std::uint64_t at) const {
    const std::uint64_t end = (at / segment_units + 1) * segment_units;
    while (at < end && is_free_[at]) {
      ++at;
    }
    return at;
  }

  std::vector<bool> is_free_;
};

int run(std::uint64_t seed, int count) {
  std::mt19937_64 chance(seed);
  const auto below = [&chance](std::uint64_t most) { return chance() % most; };
  gdev::free_places places;
  model naive;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // begin and size, in units
  for (int i = 0; i < count; ++i) {
    if (naive.segments() < 6 && below(20) == 0) {
      places.add(first + naive.segments() * segment_units * unit, segment_units * unit);
      naive.add();
    } else if (below(100) < 55 || taken.empty()) {
      const std::uint64_t units = 1 + below(below(2) == 0 ? segment_units : 4);
      const auto expected = naive.best(units);
      const auto got = places.take(units * unit);
      if (got.has_value() != expected.has_value() || (got && *got != first + *expected * unit)) {
        std::printf("step %d: take(%llu units) differs\n", i,
                    static_cast<unsigned long long>(units));
        return 1;
      }
      if (expected) {
        naive.set(*expected, units, false);
        taken.emplace_back(*expected, units);
      }
    } else {
      std::swap(taken[below(taken.size())], taken.back());
      const auto [begin, units] = taken.back();
      taken.pop_back();
      places.give(first + begin * unit, units * unit);
      naive.set(begin, units, true);
    }
    if (places.bytes() != naive.count() * unit) {
      std::printf("step %d: other bytes are free\n", i);
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  return count == 3 ? run(std::strtoull(arguments[1], nullptr, 10), std::atoi(arguments[2])) : 2;
}

/**
 * Random operations of pool_blocks against a naive model: pool_blocks SEED COUNT.
 *
 * The model says for each unit of each range who uses it, or for which stream it is free and after
 * which point. Ends with 1 and a line where the two differ.
 */
#include "interposer/pool_blocks.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace {

using gdev::pool_blocks;
using gdev::stream_point;

constexpr std::size_t unit = pool_blocks::unit;
constexpr std::size_t range_units = 24;
constexpr CUdeviceptr first = 7 * unit;
constexpr std::uint64_t for_all = 0;  // streams count from 1

/** A unit: used, or free for all or for a stream. */
struct cell {
  std::uint64_t user = 0;  // 0: free
  std::uint64_t stream = for_all;
  std::uint64_t number = 0;
};

struct run {
  std::size_t begin = 0;
  std::size_t units = 0;
};

class model {
 public:
  std::map<std::size_t, std::vector<cell>> ranges;  // by their first unit

  [[nodiscard]] cell& at(std::size_t which) {
    const auto range = std::prev(ranges.upper_bound(which));
    return range->second.at(which - range->first);
  }

  /** Returns all largest places that are free for the same. */
  [[nodiscard]] std::vector<run> runs() const {
    std::vector<run> all;
    for (const auto& [begin, cells] : ranges) {
      for (std::size_t i = 0; i < cells.size();) {
        std::size_t end = i + 1;
        while (end < cells.size() && cells[i].user == 0 && cells[end].user == 0 &&
               cells[end].stream == cells[i].stream) {
          ++end;
        }
        if (cells[i].user == 0) {
          all.push_back({begin + i, end - i});
        }
        i = end;
      }
    }
    return all;
  }

  /** Returns the size of the smallest place that a stream may use at once, and of all places. */
  [[nodiscard]] std::size_t best(std::size_t units, std::uint64_t stream) {
    std::size_t found = 0;
    for (const run& one : runs()) {
      const std::uint64_t of = at(one.begin).stream;
      if ((of == for_all || of == stream) && one.units >= units &&
          (found == 0 || one.units < found)) {
        found = one.units;
      }
    }
    return found;
  }

  [[nodiscard]] bool has_pending(std::size_t units) {
    const std::vector<run> all = runs();
    return std::any_of(all.begin(), all.end(), [&](const run& one) {
      return at(one.begin).stream != for_all && one.units >= units;
    });
  }

  /** Returns the place that begins here. */
  [[nodiscard]] run place(std::size_t begin) const {
    for (const run& one : runs()) {
      if (one.begin == begin) {
        return one;
      }
    }
    return {};
  }

  /** The later point of a place holds for all of it. */
  void settle() {
    for (const run& one : runs()) {
      std::uint64_t last = 0;
      for (std::size_t i = 0; i < one.units; ++i) {
        last = std::max(last, at(one.begin + i).number);
      }
      for (std::size_t i = 0; i < one.units; ++i) {
        at(one.begin + i).number = last;
      }
    }
  }

  void set(std::size_t begin, std::size_t units, const cell& value) {
    for (std::size_t i = 0; i < units; ++i) {
      at(begin + i) = value;
    }
    settle();
  }

  void reach(std::uint64_t stream, std::uint64_t number) {
    for (auto& [begin, cells] : ranges) {
      for (cell& one : cells) {
        if (one.user == 0 && one.stream == stream && one.number <= number) {
          one = {};
        }
      }
    }
    settle();
  }
};

[[noreturn]] void fail(const char* what, int step) {
  std::printf("step %d: %s\n", step, what);
  std::exit(1);
}

std::size_t unit_of(CUdeviceptr address) { return (address - first) / unit; }
CUdeviceptr address_of(std::size_t which) { return first + which * unit; }

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    return 2;
  }
  std::minstd_rand chance(static_cast<unsigned>(std::strtoul(words[1], nullptr, 10)));
  const auto below = [&chance](std::size_t most) {
    return std::uniform_int_distribution<std::size_t>(0, most - 1)(chance);
  };
  pool_blocks blocks;
  model naive;
  std::map<CUdeviceptr, std::size_t> used;  // units
  std::size_t next_range = 0;
  std::uint64_t number = 0;
  std::uint64_t last_user = 0;
  const int steps = std::atoi(words[2]);
  for (int step = 0; step < steps; ++step) {
    const std::size_t what = below(100);
    const std::uint64_t stream = 1 + below(3);
    const std::size_t bytes = 1 + below(8 * unit);
    const std::size_t units = (bytes + unit - 1) / unit;
    const auto use = [&](CUdeviceptr address, std::size_t of_place) {
      const run from = naive.place(unit_of(address));
      if (from.units != of_place || of_place < units) {
        fail("not the beginning of the best place", step);
      }
      naive.set(from.begin, units, {++last_user, for_all, 0});
      used[address] = units;
    };
    if (what < 3 && naive.ranges.size() < 8) {
      blocks.add_range(address_of(next_range), range_units * unit);
      naive.ranges[next_range] = std::vector<cell>(range_units);
      next_range += range_units;  // ranges touch
    } else if (what < 45) {
      const std::size_t best = naive.best(units, stream);
      const std::optional<CUdeviceptr> found = blocks.take(bytes, stream);
      if (found.has_value() != (best != 0)) {
        fail("take", step);
      }
      if (found) {
        use(*found, best);
        CUdeviceptr begin = 0;
        std::size_t asked = 0;
        if (!blocks.find(*found + bytes - 1, &begin, &asked) || begin != *found || asked != bytes) {
          fail("find", step);
        }
      }
    } else if (what < 50) {
      pool_blocks::point after;
      const bool is_there = naive.has_pending(units);
      if (blocks.has_after(bytes) != is_there) {
        fail("has_after", step);
      }
      const std::optional<CUdeviceptr> found = blocks.take_after(bytes, after);
      if (found.has_value() != is_there) {
        fail("take_after", step);
      }
      if (found) {
        const cell& one = naive.at(unit_of(*found));
        if (one.stream != after->stream || one.number != after->number) {
          fail("the point of a place", step);
        }
        use(*found, naive.place(unit_of(*found)).units);
      }
    } else if (what < 85 && !used.empty()) {
      const auto one = std::next(used.begin(), static_cast<std::ptrdiff_t>(below(used.size())));
      const auto [address, size] = *one;
      if (blocks.begin_free(address) != size * unit || blocks.begin_free(address) != 0) {
        fail("begin_free", step);
      }
      if (below(10) == 0) {
        blocks.cancel_free(address);
        continue;
      }
      const bool is_at_once = below(5) == 0;
      auto after = is_at_once ? nullptr : std::make_shared<stream_point>();
      if (after != nullptr) {
        after->stream = stream;
        after->number = ++number;
      }
      if (!blocks.end_free(address, after) || blocks.begin_free(address) != 0 ||
          blocks.find(address, nullptr, nullptr)) {
        fail("end_free", step);
      }
      naive.set(unit_of(address), size,
                {0, is_at_once ? for_all : stream, is_at_once ? 0 : number});
      used.erase(one);
    } else if (what < 97) {
      const std::uint64_t to = number - std::min<std::uint64_t>(number, below(6));
      for (const std::uint64_t of : blocks.waiting_streams()) {
        const pool_blocks::point last = blocks.last_point(of);
        std::uint64_t before = 0;
        for (std::size_t i = 0; before != last->number; ++i) {
          const pool_blocks::point one = blocks.point_at(of, i);
          if (one->stream != of || one->number <= before) {
            fail("the order of points", step);
          }
          before = one->number;
        }
        if (blocks.point_at(of, range_units * 8) != last) {
          fail("the last point", step);
        }
      }
      blocks.reach(stream, to);
      naive.reach(stream, to);
    } else {
      // All ranges have one size.
      const bool is_there = std::any_of(naive.ranges.begin(), naive.ranges.end(), [&](auto& one) {
        return std::all_of(one.second.begin(), one.second.end(), [](const cell& each) {
          return each.user == 0 && each.stream == for_all;
        });
      });
      const bool is_largest = below(2) == 0;
      const std::size_t limit = range_units * unit - unit + below(3) * unit;
      const bool has_size = is_largest ? limit >= range_units * unit : limit <= range_units * unit;
      const std::optional<CUdeviceptr> gone =
          is_largest ? blocks.take_largest_range(limit) : blocks.take_smallest_range(limit);
      if (gone.has_value() != (is_there && has_size)) {
        fail("take a range", step);
      }
      if (gone) {
        naive.ranges.erase(unit_of(*gone));
      }
    }
  }
  std::printf("right\n");
}

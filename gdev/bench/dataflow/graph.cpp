#include "bench/dataflow/graph.hpp"

#include <algorithm>
#include <numeric>

#include "bench/micro/compare.hpp"
#include "bench/program.hpp"

namespace gdev_bench {
namespace {

using vector = std::vector<std::uint32_t>;

vector product(const std::uint32_t* matrix, std::size_t side, const vector& x) {
  vector made(side);
  in_parallel(side, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      made[row] = std::inner_product(x.begin(), x.end(), matrix + row * side, std::uint32_t{0});
    }
  });
  return made;
}

/** Computes products of modules' results with vectors, without the results. */
class oracle {
 public:
  oracle(const graph& flow, const problem& of)
      : flow_(flow), of_(of), known_(flow.modules.size()) {}

  /** Returns the result of a module, multiplied by x. With sums, x is always the same. */
  vector times(std::size_t number, const vector& x) {
    if (!known_[number].empty()) {
      return known_[number];
    }
    const node& one = flow_.modules[number];
    vector made;
    if (of_.what == operation::add) {
      made = times(one.inputs[0], x);
      const vector other = times(one.inputs[1], x);
      std::transform(made.begin(), made.end(), other.begin(), made.begin(), std::plus<>());
    } else {
      made = times(one.inputs[0], times(one.inputs[1], x));
    }
    const std::uint32_t salted = of_.salt * std::accumulate(x.begin(), x.end(), std::uint32_t{0});
    for (std::uint32_t& value : made) value += salted;
    if (of_.what == operation::add) {
      known_[number] = made;
    }
    return made;
  }

 private:
  vector times(const node::input& from, const vector& x) {
    return from.is_source ? product(of_.source(from.number), of_.side, x) : times(from.number, x);
  }

  const graph& flow_;
  const problem& of_;
  std::vector<vector> known_;
};

void add_module(graph& flow, node::input first, node::input second) {
  for (const node::input& from : {first, second}) {
    if (!from.is_source) {
      flow.modules[from.number].consumers.push_back(flow.modules.size());
    }
  }
  flow.modules.push_back({{first, second}, {}});
}

/** Adds modules that take two sources each. */
graph make_first_row(std::size_t width) {
  graph made;
  for (std::size_t i = 0; i < width; ++i) {
    add_module(made, {true, 2 * i}, {true, 2 * i + 1});
  }
  made.sources = 2 * width;
  return made;
}

}  // namespace

graph make_tree(std::size_t depth) {
  graph made = make_first_row(std::size_t{1} << (depth - 1));
  for (std::size_t left = 0; left + 1 < made.modules.size(); left += 2) {
    add_module(made, {false, left}, {false, left + 1});
  }
  return made;
}

graph make_rectangle(std::size_t depth, std::size_t width) {
  graph made = make_first_row(width);
  for (std::size_t row = 1; row < depth; ++row) {
    const std::size_t above = (row - 1) * width;
    for (std::size_t i = 0; i < width; ++i) {
      add_module(made, {false, above + i}, {false, above + (i + 1) % width});
    }
  }
  return made;
}

bool is_result(const graph& flow, const problem& of, std::size_t number,
               const std::uint32_t* found) {
  random_numbers random(of.salt);
  for (int trial = 0; trial < 2; ++trial) {
    vector x(of.side);
    std::generate(x.begin(), x.end(), random);
    if (product(found, of.side, x) != oracle(flow, of).times(number, x)) {
      return false;
    }
  }
  return true;
}

}  // namespace gdev_bench

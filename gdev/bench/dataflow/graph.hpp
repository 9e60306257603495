/** Which modules a dataflow has, what flows between them, and what must come of it. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gdev_bench {

enum class operation : unsigned { add, multiply };

/** A module: one operation on two square matrices. */
struct node {
  /** A matrix that comes from outside, or the result of an earlier module. */
  struct input {
    bool is_source;
    std::size_t number;
  };
  input inputs[2];
  /** The modules that take its result. None: it is a result of the dataflow. */
  std::vector<std::size_t> consumers;

  /** Returns how many of its inputs are results of modules. */
  [[nodiscard]] std::size_t producers() const {
    return (inputs[0].is_source ? 0U : 1U) + (inputs[1].is_source ? 0U : 1U);
  }
};

/** The modules, each after those that it takes results of. */
struct graph {
  std::vector<node> modules;
  std::size_t sources = 0;
};

/** Returns a binary tree of 2^(depth - 1) modules that take two sources each, and so on to one. */
graph make_tree(std::size_t depth);

/**
 * Returns `depth` rows of `width` modules. A module takes the results of the one above it and of
 * that one's right neighbour; the last column's neighbour is the first. `width` is 2 at least.
 */
graph make_rectangle(std::size_t depth, std::size_t width);

/** What the modules compute: matrices of integers modulo 2^32. */
struct problem {
  operation what;
  std::size_t side;
  /** What each module adds to all elements. */
  std::uint32_t salt;
  /** Returns a source. */
  std::function<const std::uint32_t*(std::size_t number)> source;
};

/**
 * Tells whether `found` is the result of a module, by its products with random vectors (Freivalds'
 * check).
 */
bool is_result(const graph& flow, const problem& of, std::size_t number,
               const std::uint32_t* found);

}  // namespace gdev_bench

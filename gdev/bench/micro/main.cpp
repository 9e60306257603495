/**
 * The microprograms of table 1 of Gdev (ATC 2012), and allocations and launches:
 * micro NAME [--size N] [--repeat R]
 *
 * Prints one line of JSON: the seconds of each repeat, and the bytes that a repeat copies. A first
 * repeat is not counted.
 *
 * R = 0: prints a line when it is ready. Each line of standard input is a repeat; the answer is a
 * line with its seconds. So two processes can be measured in turn. The last line is as above.
 */
#include <iostream>
#include <iterator>
#include <memory>

#include "bench/micro/workload.hpp"
#include "bench/program.hpp"

namespace gdev_bench {
namespace {

constexpr microprogram programs[] = {
    {"LOOP", 4'000'000, 1, "iterations", make_loop},
    {"MADD", 4096, 1, "rows and columns", make_matrix_add},
    {"MMUL", 2048, 32, "rows and columns", make_matrix_multiply},
    {"CPY", 256, 1, "MiB", make_copy},
    {"PINCPY", 256, 1, "MiB", make_pinned_copy},
    {"BP", 1 << 20, 1, "inputs", make_back_propagation},
    {"BFS", 2'000'000, 1, "nodes", make_breadth_first_search},
    {"HW", 100, 1, "frames", make_heart_wall},
    {"HS", 2048, 1, "rows and columns", make_hotspot},
    {"LUD", 2048, 32, "rows and columns", make_lu_decomposition},
    {"NN", 8'000'000, 1, "records", make_nearest_neighbors},
    {"NW", 4096, 32, "letters", make_needleman_wunsch},
    {"SRAD", 2048, 1, "rows and columns", make_srad_image},
    {"SRAD2", 2048, 1, "rows and columns", make_srad_random},
    {"MALLOC1", 1, 1, "MiB", make_allocations},
    {"MALLOC16", 16, 1, "MiB", make_allocations},
    {"MALLOC256", 256, 1, "MiB", make_allocations},
    {"LAUNCH", 100'000, 1, "launches", make_launches},
};

int measure(const microprogram& chosen, std::size_t size, std::size_t repeats) {
  if (size == 0 || size % chosen.multiple != 0) {
    fail("--size: a positive multiple of " + std::to_string(chosen.multiple) + " is needed");
  }
  const std::unique_ptr<workload> made = chosen.make(size);
  made->run();
  std::vector<double> seconds;
  const auto repeat = [&] {
    made->forget();
    const stopwatch watch;
    made->run();
    seconds.push_back(watch.seconds());
  };
  for (std::size_t i = 0; i < repeats; ++i) repeat();
  if (repeats == 0) {
    std::printf("{\"program\": \"%s\", \"ready\": true}\n", chosen.name);
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
      repeat();
      std::printf("{\"seconds\": %.9f}\n", seconds.back());
      std::fflush(stdout);
    }
  }
  const bool is_right = made->is_right();
  std::printf("{\"program\": \"%s\", \"size\": %zu, \"bytes\": %zu, \"right\": %s, \"seconds\": [",
              chosen.name, size, made->bytes(), is_right ? "true" : "false");
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    std::printf("%s%.9f", i == 0 ? "" : ", ", seconds[i]);
  }
  std::printf("]}\n");
  return is_right ? 0 : wrong_result;
}

}  // namespace
}  // namespace gdev_bench

int main(int argc, char** argv) {
  using namespace gdev_bench;
  arguments given(argc, argv);
  const std::string name = given.word();
  const auto* const chosen = std::find_if(std::begin(programs), std::end(programs),
                                          [&](const auto& one) { return one.name == name; });
  if (chosen == std::end(programs)) {
    fail("there is no such microprogram: '" + name + "'");
  }
  const std::size_t size = given.number("--size", chosen->size);
  const std::size_t repeats = given.number("--repeat", 5);
  given.finish();
  return measure(*chosen, size, repeats);
}

// Doubles that find mistakes: of any bits, denormal, half-way between shorter decimal numbers,
// powers of ten and their neighbours.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>

namespace gpufs::testing {

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : random_(seed) {}

  std::uint64_t bits() { return random_(); }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  double number() {
    const std::uint64_t b = bits();
    switch (below(7)) {
      case 0: return of_bits(b);
      case 1: return of_bits(b >> 12 >> below(52));  // a denormal
      case 2: return static_cast<double>(b % 2'000'001) / 1000 - 1000;
      case 3: return std::ldexp(static_cast<double>(b % 100'000), -static_cast<int>(below(18)));
      case 4:
        return std::ldexp(static_cast<double>(static_cast<std::int64_t>(b)),
                          -static_cast<int>(below(70)));
      case 5:
        return std::pow(10, static_cast<double>(below(620)) - 310) * (below(2) == 0 ? 1 : 0.5);
      default: return edge();
    }
  }

 private:
  static double of_bits(std::uint64_t b) {
    double value;
    std::memcpy(&value, &b, sizeof value);
    return value;
  }
  double edge() {
    static const double edges[] = {0.0,
                                   -0.0,
                                   5e-324,
                                   2.2250738585072009e-308,
                                   2.2250738585072014e-308,
                                   1.7976931348623157e308,
                                   INFINITY,
                                   -INFINITY,
                                   NAN,
                                   -NAN,
                                   0.5,
                                   1.5,
                                   2.5,
                                   0.05,
                                   0.125,
                                   999999.5,
                                   9.9999995,
                                   99999.95,
                                   0.00009999995,
                                   0.0001,
                                   9007199254740993.0,
                                   1e22,
                                   1e23,
                                   123456789.0};
    return edges[below(std::size(edges))];
  }

  std::mt19937_64 random_;
};

}  // namespace gpufs::testing

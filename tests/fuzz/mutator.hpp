// Makes inputs out of others, as fuzzers do; where there is no compiler with one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace gpufs::testing {

class mutator {
 public:
  // `corpus`: not empty. It is used as long as this lives.
  mutator(const std::vector<std::string>& corpus, std::uint64_t seed)
      : corpus_(corpus), random_(seed) {}

  std::string next() {
    std::string input = one();
    if (below(8) == 0) input = input.substr(0, below(input.size() + 1)) + end_of(one());
    for (std::size_t n = below(6); n != 0; --n) change(input);
    if (input.size() > bytes_max) input.resize(bytes_max);
    return input;
  }

 private:
  static constexpr std::size_t bytes_max = 4096;

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  const std::string& one() { return corpus_[below(corpus_.size())]; }
  std::string end_of(const std::string& text) { return text.substr(below(text.size() + 1)); }
  char byte() {
    static constexpr unsigned char likely[] = {0,   1,   9,   10,  13,  ' ',  '%',  '-',
                                               '.', '/', '0', '9', 'e', 0x7f, 0x80, 0xff};
    return static_cast<char>(below(2) == 0 ? likely[below(std::size(likely))] : random_());
  }
  void change(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t bytes = std::min(below(below(4) == 0 ? 300 : 8) + 1, input.size() - at);
    switch (below(7)) {
      case 0: input.erase(at, bytes); break;
      case 1: input.insert(at, std::string(below(4) == 0 ? below(300) : 1, byte())); break;
      case 2: input.insert(at, input.substr(below(input.size() + 1), bytes)); break;
      case 3: input.insert(at, end_of(one()).substr(0, below(40))); break;
      default:
        if (at == input.size()) break;
        if (below(2) == 0) input[at] = byte();
        else input[at] = static_cast<char>(input[at] ^ 1 << below(8));
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

}  // namespace gpufs::testing

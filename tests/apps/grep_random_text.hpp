// Random texts for searches.
#pragma once

#include <algorithm>
#include <iterator>
#include <random>
#include <string>

#include "grep/grep_buffer.hpp"

namespace gpufs::testing {

// Text out of few bytes, so that words, borders of words and overlaps meet often.
class random_text {
 public:
  explicit random_text(std::uint64_t seed) : random_(seed) {
    static const std::string alphabets[] = {"a-",
                                            "a-'",
                                            "ab- \n",
                                            "a\n-",
                                            std::string("ab_-+ \n\r"),
                                            "a\xe9\xff- \n",
                                            "-- a ",
                                            "\\.*[a \n",
                                            "ab \n",
                                            "-",
                                            "aZ09_ -",
                                            "a"};
    alphabet_ = alphabets[below(std::size(alphabets))];
  }

  std::size_t below(std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_);
  }

  std::string bytes(std::size_t count) {
    std::string text(count, ' ');
    for (char& c : text) c = alphabet_[below(alphabet_.size())];
    return text;
  }

  std::string file() {
    static constexpr std::size_t sizes[] = {0,    1,    5,      60,     1000,   4096,
                                            8192, 8464, 20'000, 98'304, 140'000};
    std::size_t size = sizes[below(std::size(sizes))];
    if (size > 100) size += below(7) - 3;
    std::string text;
    if (below(3) == 0) {
      text = bytes(size);
    } else {
      while (text.size() < size) {
        const std::string piece = bytes(1 + below(300));
        static constexpr std::size_t repeats[] = {1, 1, 2, 200};
        static const char* const ends[] = {"\n", " ", ""};
        for (std::size_t k = repeats[below(4)]; k != 0; --k) text += piece;
        text += ends[below(3)];
      }
      text.resize(size);
    }
    for (std::size_t nuls = below(4) == 0 ? below(3) : 0; nuls != 0 && size != 0; --nuls) {
      const std::size_t near_first_read = std::min(size - 1, grep::first_read_bytes - 2 + below(4));
      text[below(2) == 0 ? below(size) : near_first_read] = '\0';
    }
    return text;
  }

  // A part of the text, mostly: a word that occurs.
  std::string word(const std::string& text) {
    static constexpr std::size_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40, 200, 254, 255};
    const std::size_t size = sizes[below(std::size(sizes))];
    std::string word =
        text.empty() || below(5) == 0 ? bytes(size) : text.substr(below(text.size()), size);
    std::erase(word, '\n');
    std::erase(word, '\0');
    return word;
  }

 private:
  std::mt19937_64 random_;
  std::string alphabet_;
};

}  // namespace gpufs::testing

// What groups did to files, in an order, and whether it can have been so.
//
// A file is a row of words. A write gives words a value that no other write has; cutting a file, and making one longer,
// gives 0. A read may find in a word the value of any write that had begun before the read ended, unless another write
// came wholly between the two. A write that failed may still happen, at any time after it began, or never.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpufs::testing {

class history {
 public:
  struct span {
    std::uint64_t first, count;  // words
    std::uint64_t begin, end;    // simulated::step()
  };
  static constexpr std::uint64_t for_ever = ~std::uint64_t{0};

  // Of a write that failed `end` is for_ever.
  void add_write(const span& at, std::uint64_t value) { writes_.push_back({at, value}); }
  // The words that were found; there may be fewer than were asked for, and the rest counts as 0.
  void add_read(const span& at, const std::vector<std::uint64_t>& found, const char* what);
  // Empty, or what a read found that it may not find. `only_origin`: any value that was ever written there may be found.
  std::string contradiction(bool only_origin) const;

 private:
  struct written {
    span at;
    std::uint64_t value;
  };
  struct found {
    span at;
    std::vector<std::uint64_t> values;
    const char* what;
  };
  std::string contradiction(const found& read, std::uint64_t word, bool only_origin) const;

  std::vector<written> writes_;
  std::vector<found> reads_;
};

}  // namespace gpufs::testing

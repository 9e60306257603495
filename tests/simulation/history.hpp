// What groups did to files, in an order, and whether it can have been so.
//
// A file is a row of words. A write gives words a value that no other write has; cutting a file,
// and making one longer, gives 0. A read may find in a word the value of any write that had begun
// before the read ended, unless another write came wholly between the two. A write that failed may
// still happen, at any time after it began, or never.
//
// An error can mean that bytes of earlier calls are lost, perhaps before the error is returned. So
// reads are checked for less from the settlement before it to the next: they may find any value
// that was ever written there. A settlement is made when nobody has the file open: what may still
// happen has happened by the next open, or never does. So from then on a word has any earlier value
// until a write gives it a new one.
//
// The last gclose of a file may give bytes up, let the next group open the file, and only then
// return its error. A read that was made in full while such a gclose ran is checked for less too.
#pragma once

#include <cstdint>
#include <set>
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
  void add_write(const span& at, std::uint64_t value) {
    writes_.push_back({at, value, settlements_});
  }
  // The words that were found; there may be fewer than were asked for, and the rest counts as 0.
  // `in_full`: it is checked in full whatever errors there are, but for a gclose that failed
  // meanwhile.
  void add_read(const span& at, const std::vector<std::uint64_t>& found, const char* what,
                bool in_full = false);
  // Somebody was told of an error.
  void add_error() { errors_.insert(settlements_); }
  // A gclose that ran from step `begin` to step `end` returned an error; beside add_error().
  void add_failed_close(std::uint64_t begin, std::uint64_t end) {
    failed_closes_.push_back({begin, end});
  }
  bool has_error() const { return errors_.contains(settlements_); }  // since the last settlement
  void settle() { ++settlements_; }
  // Empty, or what a read found that it may not find.
  std::string contradiction() const;

 private:
  struct written {
    span at;
    std::uint64_t value;
    unsigned after;  // so many settlements
  };
  struct found {
    span at;
    std::vector<std::uint64_t> values;
    const char* what;
    bool in_full;
    unsigned after;
  };
  struct steps {
    std::uint64_t begin, end;
  };
  std::string contradiction(const found& read, std::uint64_t word) const;
  bool is_checked_for_loss(const found& read) const;

  std::vector<written> writes_;
  std::vector<found> reads_;
  unsigned settlements_ = 0;
  std::set<unsigned> errors_;  // after so many settlements
  std::vector<steps> failed_closes_;
};

}  // namespace gpufs::testing

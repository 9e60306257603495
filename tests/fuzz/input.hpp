// What the targets of the fuzzers share: an input is bytes, of which some say what is done with the
// rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace gpufs::testing {

// Says `what`, and of which input, and aborts, unless it is as it should be: a fuzzer then keeps
// the input.
void require(bool is_so, const char* what);

// As long as it lives, require() means this input.
class current_input {
 public:
  explicit current_input(std::span<const std::uint8_t> input);
  ~current_input();
  current_input(const current_input&) = delete;
  current_input& operator=(const current_input&) = delete;
};

// Bytes as they come; zeros past the end.
class fuzz_input {
 public:
  explicit fuzz_input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::size_t left() const { return bytes_.size(); }
  std::uint64_t number(unsigned bytes) {
    std::uint64_t n = 0;
    for (unsigned i = 0; i < bytes; ++i) n |= std::uint64_t{byte()} << 8 * i;
    return n;
  }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t b = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return b;
  }
  std::string text(std::size_t most) {
    const std::size_t n = std::min(most, left());
    std::string s(reinterpret_cast<const char*>(bytes_.data()), n);
    bytes_ = bytes_.subspan(n);
    return s;
  }
  // Up to a newline, which is taken, too; or to the end.
  std::string line() {
    const auto newline = std::find(bytes_.begin(), bytes_.end(), std::uint8_t{'\n'});
    std::string s = text(static_cast<std::size_t>(newline - bytes_.begin()));
    (void)byte();
    return s;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace gpufs::testing

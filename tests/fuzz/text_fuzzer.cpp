// Numbers, tokens and searches in text that nobody has looked at, against the C library.
#include <errno.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "fuzz/input.hpp"
#include "fuzz/targets.hpp"
#include "gpufs/text/parse_integer.cuh"
#include "gpufs/text/parse_number.cuh"
#include "gpufs/text/token.cuh"

namespace gpufs::testing {
namespace {

// Memory of exactly so many bytes: what is read past it is seen.
class exact_text {
 public:
  explicit exact_text(const std::string& text)
      : bytes_(text.size()), data_(std::make_unique<char[]>(text.size())) {
    std::copy(text.begin(), text.end(), data_.get());
  }
  text_span span() const { return {data_.get(), bytes_}; }

 private:
  std::size_t bytes_;
  std::unique_ptr<char[]> data_;
};

template <class T>
void check_integer(const std::string& text, std::uint32_t base) {
  const exact_text exact(text);
  T got = 77;
  const std::int64_t result = parse_integer(exact.span(), got, base);
  char* end = nullptr;
  errno = 0;
  // Of a negative number for an unsigned type strtoull gives another one, so it is asked for the
  // size.
  const bool is_negative = text.find('-') < text.find_first_not_of(" \t\n\v\f\r-");
  const auto most = static_cast<unsigned long long>(std::numeric_limits<T>::max()) +
                    (is_negative && std::is_signed_v<T> ? 1u : 0u);
  std::string positive = text;
  if (is_negative) positive[text.find('-')] = '+';
  const unsigned long long magnitude =
      std::strtoull(positive.c_str(), &end, static_cast<int>(base));
  const bool fits = errno == 0 && magnitude <= (is_negative && !std::is_signed_v<T> ? 0 : most);
  const std::int64_t taken = end - positive.c_str();
  if (taken == 0) {
    require(result == -EINVAL && got == 77, "an integer where there is none");
  } else if (!fits) {
    const T nearest = is_negative ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    require(result == -ERANGE && got == nearest, "an integer that its type does not hold");
  } else {
    require(result == taken, "not as many bytes of an integer as strtoull takes");
    require(static_cast<unsigned long long>(is_negative ? ~static_cast<unsigned long long>(got) + 1
                                                        : static_cast<unsigned long long>(got)) ==
                magnitude,
            "another integer than strtoull reads");
  }
}

// strtod knows two forms more.
bool is_of_strtod_alone(const std::string& text) {
  std::size_t at = text.find_first_not_of(" \t\n\v\f\r");
  if (at == std::string::npos) return false;
  if (text[at] == '+' || text[at] == '-') ++at;
  std::string begin = text.substr(at, 4);
  for (char& c : begin) c = static_cast<char>(c | 0x20);
  return begin.starts_with(std::string{'0' | 0x20, 'x'}) || begin.starts_with("nan\x28");
}

void check_number(const std::string& text) {
  const exact_text exact(text);
  double got = 77;
  const std::int64_t result = parse_number(exact.span(), got);
  require(result <= static_cast<std::int64_t>(text.size()),
          "more bytes of a number than there are");
  if (is_of_strtod_alone(text)) return;
  char* end = nullptr;
  errno = 0;
  const double wanted = std::strtod(text.c_str(), &end);
  const std::int64_t taken = end - text.c_str();
  if (taken == 0) {
    require(result == -EINVAL && got == 77, "a number where there is none");
    return;
  }
  const bool is_infinite = std::isinf(wanted) && errno == ERANGE;
  require(result == (is_infinite ? -ERANGE : taken),
          "not as many bytes of a number as strtod takes");
  require(std::isnan(wanted) ? std::isnan(got) : std::memcmp(&wanted, &got, sizeof got) == 0,
          "another number than strtod reads");
}

void check_searches(const std::string& text, const std::string& set, char byte) {
  const exact_text exact(text);
  const thread_group me;
  const byte_set members(text_span{set.data(), set.size()});
  require(find_byte(me, exact.span(), byte) == text.find(byte), "another first byte");
  require(find_last_byte(me, exact.span(), byte) == text.rfind(byte), "another last byte");
  require(find_of_set(me, exact.span(), members, true) == text.find_first_of(set),
          "another first of a set");
  require(find_of_set(me, exact.span(), members, false) == text.find_first_not_of(set),
          "another first not of a set");
}

void check_tokens(const std::string& text, const std::string& delimiters) {
  const exact_text exact(text);
  text_span rest = exact.span();
  std::size_t at = 0;
  for (;;) {
    const std::size_t begin = std::min(text.find_first_not_of(delimiters, at), text.size());
    const std::size_t end = std::min(text.find_first_of(delimiters, begin), text.size());
    const text_span token =
        next_token(rest, byte_set(text_span{delimiters.data(), delimiters.size()}));
    require(token.bytes == end - begin, "a token of another length");
    require(token.bytes == 0 || token.data == exact.span().data + begin,
            "a token at another place");
    if (token.bytes == 0) return;
    at = end;
  }
}

}  // namespace

// The first line says how, the rest is the text.
void fuzz_text(std::span<const std::uint8_t> input) {
  fuzz_input in(input);
  const std::string how = in.line();
  const std::string text = in.text(in.left());
  const auto choice = how.empty() ? 0u : static_cast<unsigned char>(how[0]);
  const std::uint32_t base = choice % 37 == 1 ? 0 : choice % 37;
  check_integer<std::int64_t>(text, base);
  check_integer<std::uint64_t>(text, base);
  check_integer<std::int32_t>(text, base);
  check_integer<std::uint8_t>(text, base);
  check_number(text);
  check_searches(text, how, static_cast<char>(choice));
  check_tokens(text, how);
}

}  // namespace gpufs::testing

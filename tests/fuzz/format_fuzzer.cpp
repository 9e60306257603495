// Formats that device code carries out, with arguments of any kinds; against snprintf where that
// has a meaning for them.
#include <errno.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/targets.hpp"
#include "gpufs/text/format.cuh"

namespace gpufs::testing {
namespace {

using detail::argument_kind, detail::format_argument, detail::pack_argument;

// Of a format with one conversion, and that of a number: its parts.
struct one_conversion {
  std::string before, flags, width, precision, after;  // precision: with its point
  char letter = 0;
};

bool take_while(const std::string& text, std::size_t& at, const char* set, std::string& taken) {
  const std::size_t end = std::min(text.find_first_not_of(set, at), text.size());
  taken = text.substr(at, end - at);
  at = end;
  return at < text.size();
}

bool split(const std::string& format, one_conversion& c) {
  std::size_t at = format.find('%');
  if (at == std::string::npos || format.find('%', at + 1) != std::string::npos) return false;
  c.before = format.substr(0, at++);
  std::string modifiers;
  if (!take_while(format, at, "-0+ #", c.flags) || !take_while(format, at, "0123456789", c.width))
    return false;
  if (format[at] == '.') {
    if (!take_while(format, ++at, "0123456789", c.precision)) return false;
    c.precision = "." + c.precision;
  }
  if (!take_while(format, at, "hljztqL", modifiers)) return false;
  c.letter = format[at];
  c.after = format.substr(at + 1);
  return c.width.size() <= 3 && c.precision.size() <= 4;
}

bool is_one_of(char c, const char* set) { return c != 0 && std::strchr(set, c) != nullptr; }

template <class T>
std::string printed(const one_conversion& c, const char* modifier, T value) {
  const std::string format = "%" + c.flags + c.width + c.precision + modifier + c.letter;
  std::array<char, 3000> text{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int bytes = std::snprintf(text.data(), text.size(), format.c_str(), value);
#pragma GCC diagnostic pop
  require(bytes >= 0 && bytes < static_cast<int>(text.size()),
          "the test's own memory is too small");
  return c.before + text.data() + c.after;
}

// What the C library prints for the same; false where it has no meaning, or is known to be wrong
// (tests/text/format_test.cpp).
bool expected(const std::string& format, const format_argument& a, std::int64_t integer,
              std::string& text) {
  one_conversion c;
  if (!split(format, c)) return false;
  if (a.kind == argument_kind::integer && is_one_of(c.letter, "diuxXo")) {
    // The type decides, and d shows an unsigned one as it is.
    text = printed(c, "ll", static_cast<long long>(integer));
    return true;
  }
  if (a.kind == argument_kind::number && is_one_of(c.letter, "feEgGF")) {
    if (is_one_of(c.letter, "gG") && c.flags.find('#') != std::string::npos) return false;
    text = printed(c, "", a.number);
    return true;
  }
  return false;
}

}  // namespace

// The arguments: a letter and eight bytes for each, then a newline; the room; a newline; the
// format.
void fuzz_format(std::span<const std::uint8_t> input) {
  fuzz_input in(input);
  std::vector<format_argument> arguments;
  std::vector<std::string> texts;
  texts.reserve(8);  // they stay where they are
  std::int64_t integer = 0;
  for (char kind = static_cast<char>(in.byte()); kind != '\n' && kind != 0 && texts.size() < 8;
       kind = static_cast<char>(in.byte())) {
    const std::uint64_t bits = in.number(8);
    texts.emplace_back(reinterpret_cast<const char*>(&bits), 8);
    double number = 0;
    std::memcpy(&number, &bits, sizeof number);
    switch (kind) {
      case 'd': arguments.push_back(pack_argument(number)); break;
      case 's': arguments.push_back(pack_argument(texts.back().c_str())); break;
      case 't': arguments.push_back(pack_argument(text_span{texts.back().data(), bits % 9})); break;
      case 'n': arguments.push_back(pack_argument(static_cast<const char*>(nullptr))); break;
      case 'p': arguments.push_back(pack_argument(reinterpret_cast<void*>(bits))); break;
      case 'c':
        integer = static_cast<char>(bits & 0x7f);
        arguments.push_back(pack_argument(static_cast<char>(integer)));
        break;
      default:
        integer = static_cast<std::int64_t>(bits);
        arguments.push_back(pack_argument(integer));
    }
  }
  const std::string room_text = in.line();
  const std::size_t room =
      room_text.empty() ? 1000
                        : std::min<std::size_t>(std::strtoul(room_text.c_str(), nullptr, 10), 4000);
  const std::string format = in.text(in.left());
  // Exactly so many bytes each, with the zero of the format.
  const auto buffer = std::make_unique<char[]>(room);
  const auto exact_format = std::make_unique<char[]>(format.size() + 1);
  std::copy(format.begin(), format.end(), exact_format.get());
  const std::int64_t result = detail::format_packed(
      room == 0 ? texts.emplace_back(1, 'x').data() : buffer.get(), room, exact_format.get(),
      arguments.data(), static_cast<std::uint32_t>(arguments.size()));
  require(result >= -4095 && result < static_cast<std::int64_t>(std::max<std::size_t>(room, 1)),
          "a result out of bounds");
  require(result >= 0 || result == -EINVAL || result == -EOVERFLOW,
          "another error than the format has");
  if (room == 0) {
    require(result == -EOVERFLOW, "a text where there is no room");
    return;
  }
  require(result < 0 || buffer[static_cast<std::size_t>(result)] == 0, "no zero after the text");
  require(std::memchr(buffer.get(), 0, room) != nullptr, "no zero at all");
  std::string wanted;
  const std::string plain = exact_format.get();  // up to its first zero
  if (arguments.size() != 1 || !expected(plain, arguments[0], integer, wanted)) return;
  if (wanted.size() >= room) {
    require(result == -EOVERFLOW, "a text that does not fit");
  } else {
    require(result == static_cast<std::int64_t>(wanted.size()), "another length than snprintf's");
    require(std::memcmp(buffer.get(), wanted.data(), wanted.size()) == 0,
            "another text than snprintf's");
  }
}

}  // namespace gpufs::testing

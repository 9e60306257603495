// format_text: printf for groups, into memory.
//
// Arguments are packed with their types. So one out-of-line function, which is not a template,
// handles all formats, and a conversion that does not fit its argument is an error.
#pragma once

#include "gpufs/base/group.cuh"
#include "gpufs/text/format_number.cuh"
#include "gpufs/text/sink.cuh"

namespace gpufs {

namespace detail {

enum class argument_kind : std::uint32_t { integer, number, text, pointer };

struct format_argument {
  argument_kind kind;
  std::uint32_t bytes;  // integer: size of its type
  bool negative;        // integer
  const char* text;     // text: null, or its begin
  // integer: absolute value; text: maximum of bytes, unless a zero comes first; pointer: address
  std::uint64_t content;
  double number;
};

template <class T>
inline constexpr bool is_no_argument = false;

template <class T>
GPUFS_HD format_argument pack_argument(const T& value) {
  using type = std::decay_t<T>;
  format_argument packed{argument_kind::integer, 0, false, nullptr, 0, 0};
  if constexpr (std::is_enum_v<type>) {
    packed = pack_argument(static_cast<std::underlying_type_t<type>>(value));
  } else if constexpr (std::is_integral_v<type>) {
    static_assert(sizeof(type) <= sizeof(std::uint64_t), "integers of up to 64 bits");
    packed.bytes = sizeof(type);
    packed.content = static_cast<std::uint64_t>(value);
    if constexpr (std::is_signed_v<type>) {
      packed.negative = value < 0;
      if (packed.negative) packed.content = ~packed.content + 1;
    }
  } else if constexpr (std::is_same_v<type, double> || std::is_same_v<type, float>) {
    packed.kind = argument_kind::number;
    packed.number = static_cast<double>(value);
  } else if constexpr (std::is_same_v<type, text_span>) {
    packed.kind = argument_kind::text;
    packed.text = value.data;
    packed.content = value.bytes;
  } else if constexpr (std::is_same_v<type, const char*> || std::is_same_v<type, char*>) {
    packed.kind = argument_kind::text;
    packed.text = value;
    packed.content = ~std::uint64_t{0};
  } else if constexpr (std::is_pointer_v<type> || std::is_null_pointer_v<type>) {
    packed.kind = argument_kind::pointer;
    packed.content = reinterpret_cast<std::uintptr_t>(static_cast<const void*>(value));
  } else {
    static_assert(is_no_argument<T>, "an integer, double, float, text or pointer");
  }
  return packed;
}

// Executes a format. Used by one thread.
class formatter {
 public:
  GPUFS_HD formatter(text_sink& to, const char* format, const format_argument* arguments,
                     std::uint32_t count)
      : to_(to), at_(format), next_(arguments), end_(arguments + count) {}

  // Returns 0 or -EINVAL.
  GPUFS_HD std::int32_t run() {
    while (*at_ != 0 && !to_.is_full()) {
      if (*at_ != '%') {
        to_.put(*at_++);
      } else if (*++at_ == '%') {
        to_.put(*at_++);
      } else if (!convert()) {
        return -EINVAL;
      }
    }
    return next_ == end_ || to_.is_full() ? 0 : -EINVAL;
  }

 private:
  GPUFS_HD bool convert() {
    conversion c{};
    read_flags(c);
    std::int32_t width = 0;
    if (!read_count(width)) return false;
    if (width < 0) c.left = true;
    c.width =
        width < 0 ? ~static_cast<std::uint32_t>(width) + 1 : static_cast<std::uint32_t>(width);
    c.precision = -1;
    if (*at_ == '.') {
      ++at_;
      if (!read_count(c.precision)) return false;
    }
    while (is_modifier(*at_)) ++at_;
    if (next_ == end_) return false;
    c.capitals = *at_ >= 'A' && *at_ <= 'Z';
    c.letter = static_cast<char>(*at_ | 0x20);
    return *at_ != 0 && put(c, *at_++, *next_++);
  }

  GPUFS_HD void read_flags(conversion& c) {
    for (;; ++at_) {
      switch (*at_) {
        case '-': c.left = true; break;
        case '0': c.zeros = true; break;
        case '+': c.plus = true; break;
        case ' ': c.space = true; break;
        case '#': c.alternative = true; break;
        default: return;
      }
    }
  }

  // Reads a width or a precision: digits, nothing, or `*`. A value greater than an int's maximum
  // becomes that maximum: no text is so long.
  GPUFS_HD bool read_count(std::int32_t& count) {
    constexpr std::uint64_t most = 0x7fff'ffff;
    std::uint64_t value = 0;
    bool negative = false;
    if (*at_ == '*') {
      ++at_;
      if (next_ == end_ || next_->kind != argument_kind::integer) return false;
      negative = next_->negative;
      value = next_++->content;
    } else {
      for (; is_digit(*at_); ++at_) {
        if (value <= most) value = value * 10 + static_cast<std::uint64_t>(*at_ - '0');
      }
    }
    count = static_cast<std::int32_t>(value < most ? value : most);
    if (negative) count = -count;
    return true;
  }

  // Length modifiers are ignored: the argument's type decides.
  GPUFS_HD static bool is_modifier(char c) {
    return c == 'h' || c == 'l' || c == 'j' || c == 'z' || c == 't' || c == 'q' || c == 'L';
  }

  GPUFS_HD bool put(conversion& c, char letter, const format_argument& a) {
    switch (letter) {
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return a.kind == argument_kind::integer && put_integer(c, a);
      case 'c': {
        if (a.kind != argument_kind::integer) return false;
        const auto character = static_cast<char>(a.negative ? ~a.content + 1 : a.content);
        put_text(to_, c, {&character, 1});
        return true;
      }
      case 's': return a.kind == argument_kind::text && put_string(c, a);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
        if (a.kind != argument_kind::number) return false;
        format_number(to_, c, a.number);
        return true;
      case 'p': return put_pointer(c, a);
      default: return false;
    }
  }

  GPUFS_HD bool put_integer(const conversion& c, const format_argument& a) {
    const bool is_decimal = c.letter == 'd' || c.letter == 'i';
    std::uint64_t value = a.content;
    // Other conversions than d and i show the bits of a negative number.
    if (a.negative && !is_decimal) value = (~value + 1) & (~std::uint64_t{0} >> (64 - 8 * a.bytes));
    put_digits(c, is_decimal ? sign_of(c, a.negative) : text_span{nullptr, 0}, value);
    return true;
  }

  GPUFS_HD void put_digits(const conversion& c, text_span prefix, std::uint64_t value) {
    const std::uint32_t base = c.letter == 'x' ? 16 : c.letter == 'o' ? 8 : 10;
    const char* const names = c.capitals ? "0123456789ABCDEF" : "0123456789abcdef";
    constexpr std::uint32_t most = 22;  // octal digits of 64 bits
    char digits[most];
    std::uint32_t first = most;
    for (std::uint64_t left = value; left != 0; left /= base) digits[--first] = names[left % base];
    const text_span text{digits + first, most - first};
    std::uint64_t wanted = c.precision < 0 ? 1 : static_cast<std::uint64_t>(c.precision);
    if (c.alternative && base == 8 && wanted <= text.bytes)
      wanted = text.bytes + 1;  // so that it begins with a zero
    const std::uint64_t zeros = wanted > text.bytes ? wanted - text.bytes : 0;
    if (c.alternative && base == 16 && value != 0) prefix = {c.capitals ? "0X" : "0x", 2};
    put_field(to_, c, c.zeros && c.precision < 0, prefix, zeros + text.bytes, [&] {
      to_.fill('0', zeros);
      to_.put(text);
    });
  }

  GPUFS_HD bool put_string(const conversion& c, const format_argument& a) {
    const std::uint64_t most =
        c.precision < 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(c.precision);
    if (a.text == nullptr && a.content != 0) {
      // Like glibc: all of "(null)" or nothing.
      put_text(to_, c, {"(null)", most < 6 ? std::uint64_t{0} : 6});
    } else if (a.content == ~std::uint64_t{0}) {
      put_text(to_, c, span_of(a.text, most));
    } else {
      put_text(to_, c, {a.text, a.content < most ? a.content : most});
    }
    return true;
  }

  GPUFS_HD bool put_pointer(conversion& c, const format_argument& a) {
    if (a.kind != argument_kind::pointer && a.kind != argument_kind::text) return false;
    const std::uint64_t address =
        a.kind == argument_kind::text ? reinterpret_cast<std::uintptr_t>(a.text) : a.content;
    if (address == 0) {
      put_text(to_, c, {"(nil)", 5});
      return true;
    }
    c.letter = 'x';
    c.alternative = true;
    put_digits(c, sign_of(c, false), address);
    return true;
  }

  text_sink& to_;
  const char* at_;
  const format_argument* next_;
  const format_argument* end_;
};

// Formats into `buffer`, with a zero after the text. Returns the bytes of the text, or -EINVAL,
// -EOVERFLOW or -EFAULT. Called by one thread.
GPUFS_HD GPUFS_OUT_OF_LINE inline std::int64_t format_packed(char* buffer, std::uint64_t size,
                                                             const char* format,
                                                             const format_argument* arguments,
                                                             std::uint32_t count) {
  if (buffer == nullptr || format == nullptr) return -EFAULT;
  if (size == 0) return -EOVERFLOW;
  text_sink to(buffer, size - 1);
  const std::int32_t error = formatter(to, format, arguments, count).run();
  buffer[to.bytes()] = 0;
  if (error != 0) return error;
  return to.is_full() ? -EOVERFLOW : static_cast<std::int64_t>(to.bytes());
}

}  // namespace detail

// Formats text into `buffer`, with a zero after it. Collective: all members call it. The leader
// must be able to write the `size` bytes of `buffer`, and its arguments are used. Returns the bytes
// of the text without the zero; all members then see the text. Waits only for the members of the
// group.
//
// Conversions, as for fprintf(3): d i u x X o c (integers); s (const char*, or a text_span, which
// needs no zero); f F e E g G (double, float); p (pointers); %%. Flags - 0 + space #, width and
// precision, with * for both. Length modifiers are ignored, because the argument's type decides: d
// shows an unsigned argument unchanged; u x X o show the bits of a negative argument in its type.
// Floating-point numbers are rounded exactly, like in glibc.
//
// Errors; the buffer then has a part of the text:
// - -EINVAL: a conversion is unknown or does not fit its argument, or there are too few or too many
//   arguments.
// - -EOVERFLOW: the text does not fit. (POSIX snprintf would truncate it.)
// - -EFAULT: `buffer` or `format` is null.
//
// Cost: the leader does all the work. A digit of a number below 2^64 and above 10^-20 takes some
// hundred instructions; the largest and smallest numbers take up to a hundred thousand.
template <class Group, class... Arguments>
GPUFS_HD std::int64_t format_text(const Group& g, char* buffer, std::uint64_t size,
                                  const char* format, const Arguments&... arguments) {
  std::int64_t result = 0;
  g.sync();  // the other members no longer use the buffer
  if (g.is_leader()) {
    // One element more than arguments, because an array must not be empty.
    const detail::format_argument packed[sizeof...(arguments) + 1] = {
        detail::pack_argument(arguments)...};
    result = detail::format_packed(buffer, size, format, packed, sizeof...(arguments));
  }
  // The barrier inside makes the leader's text visible to all members.
  return g.broadcast(result);
}

}  // namespace gpufs

// The destination of formatted text: memory of a fixed size.
#pragma once

#include "gpufs/text/span.cuh"

namespace gpufs::detail {

class text_sink {
 public:
  GPUFS_HD text_sink(char* to, std::uint64_t room) : to_(to), room_(room) {}

  GPUFS_HD std::uint64_t bytes() const { return bytes_; }
  // True if more bytes were put than fit.
  GPUFS_HD bool is_full() const { return overflowed_; }

  GPUFS_HD void put(char c) {
    if (bytes_ < room_) to_[bytes_++] = c;
    else overflowed_ = true;
  }
  GPUFS_HD void put(text_span text) {
    for (std::uint64_t i = 0; i < text.bytes && !overflowed_; ++i) put(text.data[i]);
  }
  // Any `count` is safe: filling ends when the sink is full.
  GPUFS_HD void fill(char c, std::uint64_t count) {
    for (; count != 0 && !overflowed_; --count) put(c);
  }

 private:
  char* to_;
  std::uint64_t room_;
  std::uint64_t bytes_ = 0;
  bool overflowed_ = false;
};

// One conversion of a format, such as "%-08.3f".
struct conversion {
  bool left;
  bool zeros;
  bool plus;
  bool space;
  bool alternative;
  std::uint32_t width;
  std::int32_t precision;  // < 0: not given
  char letter;             // lower case
  bool capitals;
};

// Returns the sign before a number.
GPUFS_HD inline text_span sign_of(const conversion& c, bool negative) {
  if (negative) return {"-", 1};
  if (c.plus) return {"+", 1};
  return {" ", c.space ? std::uint64_t{1} : 0};
}

// Writes a field of at least `width` bytes: the prefix, then the `body_bytes` that `body` puts. If
// `zeros`, the padding is zeros between the two.
template <class Body>
GPUFS_HD void put_field(text_sink& to, const conversion& c, bool zeros, text_span prefix,
                        std::uint64_t body_bytes, const Body& body) {
  const std::uint64_t bytes = prefix.bytes + body_bytes;
  const std::uint64_t padding = c.width > bytes ? c.width - bytes : 0;
  if (!c.left && !zeros) to.fill(' ', padding);
  to.put(prefix);
  if (!c.left && zeros) to.fill('0', padding);
  body();
  if (c.left) to.fill(' ', padding);
}
GPUFS_HD inline void put_text(text_sink& to, const conversion& c, text_span text) {
  put_field(to, c, false, {nullptr, 0}, text.bytes, [&] { to.put(text); });
}

}  // namespace gpufs::detail

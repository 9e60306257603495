// Searches text with all members of a group. Collective: all members pass the same text, which all
// can read, and get the same result.
#pragma once

#include "gpufs/base/group.cuh"
#include "gpufs/text/span.cuh"
#include "gpufs/text/words.cuh"

namespace gpufs {

inline constexpr std::uint64_t not_found = ~std::uint64_t{0};

// A set of bytes, such as delimiters.
class byte_set {
 public:
  // `members`: zero-terminated, or a text_span, which may contain a zero.
  GPUFS_HD explicit byte_set(const char* members) {
    for (; *members != 0; ++members) add(*members);
  }
  GPUFS_HD explicit byte_set(text_span members) {
    for (std::uint64_t i = 0; i < members.bytes; ++i) add(members.data[i]);
  }
  GPUFS_HD bool has(char c) const {
    const auto byte = static_cast<std::uint8_t>(c);
    return (bits_[byte / 64] >> (byte % 64) & 1) != 0;
  }

 private:
  GPUFS_HD void add(char c) {
    const auto byte = static_cast<std::uint8_t>(c);
    bits_[byte / 64] |= std::uint64_t{1} << (byte % 64);
  }
  std::uint64_t bits_[4] = {};
};

namespace detail {

// A text as the aligned 8-byte words that it overlaps. Each member loads one word at a time.
class aligned_words {
 public:
  GPUFS_HD explicit aligned_words(text_span text)
      : text_(text), head_(reinterpret_cast<std::uintptr_t>(text.data) % 8),
        count_((head_ + text.bytes + 7) / 8) {}

  GPUFS_HD std::uint64_t count() const { return count_; }

  // The offset in the text of byte `k` of word `i`. The byte must belong to the text.
  GPUFS_HD std::uint64_t place(std::uint64_t i, std::uint32_t k) const { return i * 8 + k - head_; }

  // Loads word `i`. Bytes outside the text must not be accessed; they read as `other`.
  GPUFS_HD std::uint64_t load(std::uint64_t i, std::uint8_t other) const {
    std::uint64_t word = 0;
    if (i * 8 >= head_ && i * 8 + 8 <= head_ + text_.bytes) {
      std::memcpy(&word, __builtin_assume_aligned(text_.data + place(i, 0), 8), 8);
      return word;
    }
    for (std::uint32_t k = 8; k-- > 0;) {
      const bool own = i * 8 + k >= head_ && i * 8 + k < head_ + text_.bytes;
      word = word << 8 | (own ? static_cast<std::uint8_t>(text_.data[place(i, k)]) : other);
    }
    return word;
  }

 private:
  text_span text_;
  std::uint64_t head_;  // bytes of the first word before the text
  std::uint64_t count_;
};

}  // namespace detail

// Returns the offset of the first byte with this value, or not_found.
template <class Group>
GPUFS_HD std::uint64_t find_byte(const Group& g, text_span text, char byte) {
  const auto wanted = static_cast<std::uint8_t>(byte);
  const detail::aligned_words words(text);
  for (std::uint64_t first = 0; first < words.count(); first += g.size()) {
    std::uint64_t mine = not_found;
    if (const std::uint64_t i = first + g.rank(); i < words.count()) {
      const std::uint64_t hits =
          zero_bytes(words.load(i, static_cast<std::uint8_t>(~wanted)) ^ eightfold(wanted));
      if (hits != 0) mine = words.place(i, lowest_bit(hits) / 8);
    }
    const std::uint64_t found = g.least(mine);
    if (found != not_found) return found;
  }
  return not_found;
}

// Returns the offset of the last byte with this value, or not_found.
template <class Group>
GPUFS_HD std::uint64_t find_last_byte(const Group& g, text_span text, char byte) {
  const auto wanted = static_cast<std::uint8_t>(byte);
  const detail::aligned_words words(text);
  for (std::uint64_t behind = words.count(); behind != 0;
       behind -= behind < g.size() ? behind : g.size()) {
    std::uint64_t mine = not_found;  // text bytes after the hit; the last byte has the fewest
    if (g.rank() < behind) {
      const std::uint64_t i = behind - 1 - g.rank();
      const std::uint64_t hits =
          zero_bytes(words.load(i, static_cast<std::uint8_t>(~wanted)) ^ eightfold(wanted));
      if (hits != 0) mine = text.bytes - 1 - words.place(i, highest_bit(hits) / 8);
    }
    const std::uint64_t found = g.least(mine);
    if (found != not_found) return text.bytes - 1 - found;
  }
  return not_found;
}

// Returns the offset of the first byte that is in the set, or not_found. With `inside` false: of
// the first byte that is not in the set.
template <class Group>
GPUFS_HD std::uint64_t find_of_set(const Group& g, text_span text, const byte_set& set,
                                   bool inside) {
  constexpr std::uint64_t piece = 8;  // bytes per member and iteration
  for (std::uint64_t first = 0; first < text.bytes; first += g.size() * piece) {
    std::uint64_t mine = not_found;
    for (std::uint64_t k = 0; k < piece && mine == not_found; ++k) {
      const std::uint64_t at = first + g.rank() * piece + k;
      if (at < text.bytes && set.has(text.data[at]) == inside) mine = at;
    }
    const std::uint64_t found = g.least(mine);
    if (found != not_found) return found;
  }
  return not_found;
}

}  // namespace gpufs

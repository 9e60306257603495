// Text as 8-byte words, the unit of classification, hashing and comparison. Little-endian, as GPUs
// and their hosts are: byte i of a word is bits 8i to 8i+7.
#pragma once

#include "gpufs/text/words.cuh"

namespace gpufs::grep {

// Sets bit 7 of each byte in [`low`, `high`], both below 128. Bytes of `x` must be below 128.
GPUFS_HD constexpr std::uint64_t in_range(std::uint64_t x, std::uint8_t low, std::uint8_t high) {
  const std::uint64_t at_least = x + eightfold(static_cast<std::uint8_t>(0x80 - low));
  const std::uint64_t above = x + eightfold(static_cast<std::uint8_t>(0x7f - high));
  return at_least & ~above;
}

// Gathers bit 7 of each byte: bit i of the result is that of byte i. `found` must have no other
// bits.
GPUFS_HD constexpr std::uint32_t byte_bits(std::uint64_t found) {
  // The product has the bit of byte i at bit 56 + i. Its terms do not collide.
  return static_cast<std::uint32_t>(((found >> 7) * 0x0102'0408'1020'4080ull) >> 56);
}

// Bit i is set if byte i is a word character.
GPUFS_HD constexpr std::uint32_t word_characters(std::uint64_t text) {
  const std::uint64_t low = text & eightfold(0x7f);
  const std::uint64_t letter = in_range(low | eightfold(0x20), 'a', 'z');
  const std::uint64_t digit = in_range(low, '0', '9');
  const std::uint64_t underscore = in_range(low, '_', '_');
  return byte_bits((letter | digit | underscore) & ~text & eightfold(0x80));
}

// Maps A to Z to a to z in all eight bytes. Other bytes stay.
GPUFS_HD constexpr std::uint64_t fold_case(std::uint64_t text) {
  const std::uint64_t capital =
      in_range(text & eightfold(0x7f), 'A', 'Z') & ~text & eightfold(0x80);
  return text | capital >> 2;  // bit 7 to bit 5, in which the two cases differ
}

GPUFS_HD constexpr bool is_word_character(std::uint8_t byte) {
  return (word_characters(byte) & 1) != 0;
}

// Returns eight bytes from byte position `at`, of any alignment. Also reads the word after the one
// that holds `at`.
GPUFS_HD inline std::uint64_t eight_bytes(const std::uint64_t* text, std::uint32_t at) {
  const std::uint32_t shift = at % 8 * 8;
  const std::uint64_t first = text[at / 8];
  const std::uint64_t second = text[at / 8 + 1];
  return first >> shift | second << 1 << (63 - shift);  // two shifts: a shift by 64 is undefined
}

// Keeps the first `bytes` of the eight; zeros after them.
GPUFS_HD constexpr std::uint64_t keep_bytes(std::uint64_t text, std::uint32_t bytes) {
  return bytes >= 8 ? text : text & ((std::uint64_t{1} << (8 * bytes)) - 1);
}

GPUFS_HD inline std::uint64_t hash_text(const std::uint64_t* text, std::uint32_t at,
                                        std::uint32_t bytes) {
  std::uint64_t h = bytes;
  for (std::uint32_t done = 0; done < bytes; done += 8) {
    h = (h ^ keep_bytes(eight_bytes(text, at + done), bytes - done)) * 0x9e37'79b9'7f4a'7c15ull;
    h ^= h >> 32;
  }
  h *= 0xd6e8'feb8'6659'fd93ull;
  return h ^ (h >> 29);
}

// Returns whether the text at `at` begins with `bytes` of `word`. The last word of `word` has zeros
// after its end.
GPUFS_HD inline bool equal_text(const std::uint64_t* text, std::uint32_t at,
                                const std::uint64_t* word, std::uint32_t bytes) {
  for (std::uint32_t done = 0; done < bytes; done += 8) {
    const std::uint32_t left = bytes - done;
    if (keep_bytes(eight_bytes(text, at + done), left) != keep_bytes(word[done / 8], left))
      return false;
  }
  return true;
}

}  // namespace gpufs::grep

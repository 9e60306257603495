// The dictionary as kernels use it: one open-addressing hash table over a pool of texts.
//
// The table has each word, and each beginning of a word that ends before a non-word character
// ("don" and "don't" for "don't've"): the places at which a text that holds the word has a word
// boundary inside it. So whoever has a text up to a boundary learns from one look whether it is a
// word, and whether a longer word may continue it.
#pragma once

#include <string>
#include <vector>

#include "text.cuh"

namespace gpufs::grep {

inline constexpr std::uint32_t no_word = ~std::uint32_t{0};

// Aligned so that a copy is one access.
struct alignas(16) table_entry {
  std::uint32_t fingerprint;  // upper half of the hash
  std::uint32_t
      // in the pool, in 8-byte words. In front of the text of an overlapping word: its ordinal
      text;
  std::uint32_t word;   // index of the word, or no_word for what only begins one
  std::uint16_t bytes;  // 0: the entry is free
  std::uint8_t
      continues;  // 1: a longer word begins with this text, followed by a non-word character
  std::uint8_t
      overlaps;  // 1: two matches of this word can overlap (dictionary.cpp: overlaps_itself)
};
static_assert(sizeof(table_entry) == 16, "two entries to a 32-byte sector of GPU memory");

// Classes of bytes, one table for all threads of a block.
enum byte_class : std::uint8_t {
  byte_begins = 1,  // a word begins with it
  // It is in no word that overlaps itself, so no chain of overlapping matches goes across it, and
  // the text may be cut behind it without looking back. Newline and NUL always are: no word has
  // them.
  byte_breaks = 2
};

// The handle for kernels.
struct dictionary_ref {
  const table_entry* entries;
  const std::uint64_t* texts;
  const std::uint8_t* classes;  // 256 byte_class sets
  std::uint32_t entry_mask;     // number of entries - 1; a power of two, at most half of them used
  std::uint32_t overlapping;    // words that overlap themselves; ordinals are below it
  std::uint32_t longest;        // bytes of the longest word
  std::uint32_t begins_non_word;  // 1: some word begins with a non-word character
  std::uint32_t
      folds_case;  // 1: the table has words with fold_case, and the text has to be folded, too
};

// Owner of the host's copy.
struct flat_dictionary {
  std::vector<std::string>
      words;  // sorted, each once; as they were given, also where the table has them folded
  std::vector<table_entry> entries;
  std::vector<std::uint64_t> texts;
  std::vector<std::uint8_t> classes;
  std::uint32_t overlapping = 0;
  std::uint32_t longest = 0;
  bool begins_non_word = false;
  bool folds_case = false;
};

// The entry of the text at `at`; one with `bytes` = 0 when there is none. A hash alone proves
// nothing: the bytes decide.
GPUFS_HD inline table_entry find_entry(const dictionary_ref& d, const std::uint64_t* text,
                                       std::uint32_t at, std::uint32_t bytes) {
  const std::uint64_t hash = hash_text(text, at, bytes);
  const auto fingerprint = static_cast<std::uint32_t>(hash >> 32);
  for (std::uint32_t slot = static_cast<std::uint32_t>(hash) & d.entry_mask;;
       slot = (slot + 1) & d.entry_mask) {
    const table_entry entry = d.entries[slot];
    if (entry.bytes == 0) return entry;
    if (entry.fingerprint == fingerprint && entry.bytes == bytes &&
        equal_text(text, at, d.texts + entry.text, bytes))
      return entry;
  }
}

}  // namespace gpufs::grep

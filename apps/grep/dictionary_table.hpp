// The dictionary as kernels use it: one open-addressing hash table over a pool of texts.
//
// Its keys are the words, and each prefix of a word that ends before a non-word character ("don"
// and "don't" for "don't've"). At these places a text that holds the word has a word boundary
// inside it. So a thread that has a text up to a boundary needs one lookup to learn whether it is a
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
  // Place in the pool, in 8-byte words. The pool has the ordinal of an overlapping word before
  // its text.
  std::uint32_t text;
  std::uint32_t word;   // index of the word, or no_word if the key is only a prefix
  std::uint16_t bytes;  // 0: the entry is free
  std::uint8_t
      continues;  // 1: a longer word begins with this text, followed by a non-word character
  std::uint8_t
      overlaps;  // 1: two matches of this word can overlap (dictionary.cpp: overlaps_itself)
};
static_assert(sizeof(table_entry) == 16, "two entries to a 32-byte sector of GPU memory");

// Classes of bytes. All threads of a block share one table.
enum byte_class : std::uint8_t {
  byte_begins = 1,  // some word begins with it
  // The byte is in no word that overlaps itself. No chain of overlapping matches crosses it, so the
  // text may be cut after it without reading backwards. Newline and NUL always have this class,
  // because no word contains them.
  byte_breaks = 2
};

// The handle for kernels.
struct dictionary_ref {
  const table_entry* entries;
  const std::uint64_t* texts;
  const std::uint8_t* classes;  // 256 byte_class sets
  // number of entries - 1. The number is a power of two; at most half of the entries are used.
  std::uint32_t entry_mask;
  // number of words that overlap themselves; their ordinals are below it
  std::uint32_t overlapping;
  std::uint32_t longest;          // bytes of the longest word
  std::uint32_t begins_non_word;  // 1: some word begins with a non-word character
  std::uint32_t
      folds_case;  // 1: the table has words after fold_case, so the text must be folded too
};

// Owner of the host's copy.
struct flat_dictionary {
  // Sorted, without duplicates, in the given spelling even if the table has them folded.
  std::vector<std::string> words;
  std::vector<table_entry> entries;
  std::vector<std::uint64_t> texts;
  std::vector<std::uint8_t> classes;
  std::uint32_t overlapping = 0;
  std::uint32_t longest = 0;
  bool begins_non_word = false;
  bool folds_case = false;
};

// Returns the entry of the text at `at`, or an entry with `bytes` = 0 if there is none. Compares
// the bytes: equal hashes alone prove nothing.
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

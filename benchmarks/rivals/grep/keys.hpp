// The dictionary as the programs without gpufs use it: a hash table, and before it a bit filter
// over more hash bits. The filter rejects most words of a text that are not in the dictionary, and
// fits into a nearer cache.
//
// A key is a word, or a prefix of a word after which a text with that word has a word boundary. An
// entry has the key's first and last eight bytes, so most keys are compared without their texts.
#pragma once

#include <vector>

#include "grep/dictionary_table.hpp"

namespace gpufs::grep {

// Aligned so that no entry lies in two cache lines.
struct alignas(32) key_entry {
  std::uint64_t first;     // eight bytes, with zeros after the end
  std::uint64_t last;      // eight bytes; 0 if the key has no more than eight
  std::uint32_t word;      // or no_word
  std::uint32_t text;      // in flat_dictionary::texts
  std::uint16_t bytes;     // 0: free
  std::uint8_t continues;  // as in table_entry
  std::uint8_t overlaps;
};
static_assert(sizeof(key_entry) == 32, "two entries to a cache line");

GPUFS_HD constexpr std::uint64_t hash_key(std::uint64_t first, std::uint64_t last,
                                          std::uint32_t bytes) {
  // The highest bits depend on all others, and only they are used.
  const std::uint64_t mixed = (first ^ (first >> 32) ^ bytes) * 0x9e37'79b9'7f4a'7c15ull;
  return (mixed ^ (mixed >> 29) ^ last * 0xd6e8'feb8'6659'fd93ull) * 0xbf58'476d'1ce4'e5b9ull;
}

struct keys_ref {
  const key_entry* entries;
  const std::uint32_t* filter;
  const std::uint64_t* texts;
  std::uint32_t entry_bits;
  std::uint32_t filter_bits;
  std::uint32_t longest;  // bytes of the longest word
  // Words that begin with a word character begin with at least this many of them.
  std::uint32_t shortest_run;
  std::uint32_t begins_non_word;

  // Where a lookup of a hash begins.
  GPUFS_HD std::uint64_t entry_slot(std::uint64_t hash) const { return hash >> (64 - entry_bits); }
  GPUFS_HD std::uint64_t filter_word(std::uint64_t hash) const {
    return hash >> (64 - filter_bits) >> 5;
  }

  // Whether a key with this hash may exist.
  GPUFS_HD bool may_have(std::uint64_t hash) const {
    return (filter[filter_word(hash)] >> (hash >> (64 - filter_bits)) % 32 & 1) != 0;
  }

  // Returns null if there is no such key. `has_middle(text)` returns whether the searched text has
  // the same bytes as `text` between the first and the last eight.
  template <class Middle>
  GPUFS_HD const key_entry* find(std::uint64_t hash, std::uint64_t first, std::uint64_t last,
                                 std::uint32_t bytes, const Middle& has_middle) const {
    const std::uint64_t mask = (std::uint64_t{1} << entry_bits) - 1;
    for (std::uint64_t slot = entry_slot(hash);; slot = (slot + 1) & mask) {
      const key_entry& entry = entries[slot];
      if (entry.bytes == 0) return nullptr;
      if (entry.first == first && entry.last == last && entry.bytes == bytes &&
          (bytes <= 16 || has_middle(texts + entry.text)))
        return &entry;
    }
  }
};

// Owner of the host's copy. `dictionary` must outlive it.
class key_table {
 public:
  explicit key_table(const flat_dictionary& dictionary);
  keys_ref ref() const;
  const std::vector<key_entry>& entries() const { return entries_; }
  const std::vector<std::uint32_t>& filter() const { return filter_; }
  const flat_dictionary& dictionary() const { return dictionary_; }

 private:
  void add(const table_entry& from);

  const flat_dictionary& dictionary_;
  std::vector<key_entry> entries_;
  std::vector<std::uint32_t> filter_;
  std::uint32_t entry_bits_ = 4;
  std::uint32_t shortest_run_;
};

}  // namespace gpufs::grep

#include "rivals/grep/keys.hpp"

#include <algorithm>

namespace gpufs::grep {

namespace {

constexpr std::uint32_t filter_bits_more = 3;  // at least 16 bits for each key
constexpr std::uint32_t shortest_run_max =
    8;  // a search takes one step for each character at each place

// Returns the number of word characters at the beginning of a word.
std::uint32_t run_of(const std::string& word) {
  const auto end = std::find_if(word.begin(), word.end(), [](char c) {
    return !is_word_character(static_cast<std::uint8_t>(c));
  });
  return static_cast<std::uint32_t>(end - word.begin());
}

}  // namespace

key_table::key_table(const flat_dictionary& dictionary)
    : dictionary_(dictionary), shortest_run_(shortest_run_max) {
  const auto keys =
      static_cast<std::size_t>(std::count_if(dictionary.entries.begin(), dictionary.entries.end(),
                                             [](const table_entry& e) { return e.bytes != 0; }));
  while ((std::size_t{1} << entry_bits_) < 2 * keys) ++entry_bits_;
  entries_.assign(std::size_t{1} << entry_bits_, key_entry{});
  filter_.assign((std::size_t{1} << (entry_bits_ + filter_bits_more)) / 32, 0);
  for (const table_entry& e : dictionary.entries) {
    if (e.bytes != 0) add(e);
  }
  for (const std::string& word : dictionary.words) {
    if (const std::uint32_t run = run_of(word); run != 0)
      shortest_run_ = std::min(shortest_run_, run);
  }
}

void key_table::add(const table_entry& from) {
  const std::uint64_t* const text = dictionary_.texts.data() + from.text;
  const std::uint64_t first = keep_bytes(text[0], from.bytes);
  const std::uint64_t last = from.bytes > 8 ? eight_bytes(text, from.bytes - 8u) : 0;
  const std::uint64_t hash = hash_key(first, last, from.bytes);
  const std::uint64_t bit = hash >> (64 - entry_bits_ - filter_bits_more);
  filter_[bit / 32] |= 1u << bit % 32;
  std::uint64_t slot = hash >> (64 - entry_bits_);
  while (entries_[slot].bytes != 0) slot = (slot + 1) % entries_.size();
  entries_[slot] = {first, last, from.word, from.text, from.bytes, from.continues, from.overlaps};
}

keys_ref key_table::ref() const {
  return {entries_.data(),
          filter_.data(),
          dictionary_.texts.data(),
          entry_bits_,
          entry_bits_ + filter_bits_more,
          dictionary_.longest,
          shortest_run_,
          dictionary_.begins_non_word ? 1u : 0u};
}

}  // namespace gpufs::grep

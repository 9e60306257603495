// Finds the dictionary's words in a window.
//
// A match begins where the preceding character is no word character, and ends where the following
// character is none. So a thread visits each such beginning in its part of the window. There it
// tries one end after another, as long as the dictionary has a longer word.
//
// Overlapping matches of one word ("a-a" in "a-a-a-a") form a chain: each match overlaps the one
// before. The first match of a chain counts. After that, the next match counts that begins after
// the end of the last counted match. The thread that finds the chain's first match walks along the
// chain; other threads see that theirs is not the first. A chain that continues after the searched
// part leaves a note for the next window (`carried_chain`).
#pragma once

#include "tally.cuh"
#include "window.cuh"

namespace gpufs::grep {

// For one word that overlaps itself: how far the last counted match reaches into the part of the
// next window. There are two notes, so that the note of one window can be read while that of the
// next is written. A note has its window's number in the upper half and the bytes in the lower
// half. Window numbers are not reused, so old notes need not be removed.
struct carried_chain {
  atomic_word<std::uint64_t> notes[2];
};

// Returns the bits of a segment whose bytes lie in [from, to) of the window.
GPUFS_HD constexpr std::uint32_t bits_within(std::uint32_t segment, std::uint32_t from,
                                             std::uint32_t to) {
  const std::uint32_t first = segment * segment_bytes;
  std::uint32_t bits = ~std::uint32_t{0};
  if (first < from) bits &= ~std::uint32_t{0} << (from - first);
  if (first + segment_bytes > to) bits &= ~std::uint32_t{0} >> (first + segment_bytes - to);
  return bits;
}

// Searches the part [from, to) of a window for matches that begin there. Each thread uses it for
// its segments.
class matcher {
 public:
  GPUFS_HD matcher(const dictionary_ref& dictionary, const std::uint8_t* classes,
                   const text_window& window, std::uint32_t from, std::uint32_t to,
                   std::uint32_t window_number, carried_chain* chains, tally& counts)
      : dictionary_(dictionary), classes_(classes), window_(window), text_(window.text()),
        masks_(window.masks()), from_(from), to_(to), window_number_(window_number),
        chains_(chains), counts_(counts) {}

  // Counts the matches that begin in a segment.
  GPUFS_HD void search_segment(std::uint32_t segment) const {
    for (std::uint32_t beginnings = beginnings_in(segment); beginnings != 0;
         beginnings &= beginnings - 1)
      search_at(segment * segment_bytes + lowest_bit(beginnings));
  }

  // Bit i is set if a match begins at byte i of the segment. Counts nothing.
  GPUFS_HD std::uint32_t matches_in(std::uint32_t segment) const {
    std::uint32_t matches = 0;
    for (std::uint32_t beginnings = beginnings_in(segment); beginnings != 0;
         beginnings &= beginnings - 1) {
      const std::uint32_t bit = lowest_bit(beginnings);
      for_each_match(segment * segment_bytes + bit, [&](const table_entry&) {
        matches |= std::uint32_t{1} << bit;
        return false;
      });
    }
    return matches;
  }

 private:
  GPUFS_HD bool word_character_at(std::uint32_t at) const {
    return (masks_[at / segment_bytes] >> (at % segment_bytes) & 1) != 0;
  }

  // Returns the first offset from `at` on that has no word character, or any offset after `limit`
  // if there is none up to it.
  GPUFS_HD std::uint32_t run_end(std::uint32_t at, std::uint32_t limit) const {
    while (at <= limit) {
      const std::uint32_t others = ~masks_[at / segment_bytes] >> (at % segment_bytes);
      if (others != 0) return at + lowest_bit(others);
      at = (at / segment_bytes + 1) * segment_bytes;
    }
    return at;
  }

  // Where a match may begin: bit i stands for byte i of the segment.
  GPUFS_HD std::uint32_t beginnings_in(std::uint32_t segment) const {
    const std::uint32_t mask = masks_[segment];
    const std::uint32_t before = segment == 0 ? 0 : masks_[segment - 1] >> 31;
    std::uint32_t beginnings = ~(mask << 1 | before);
    if (dictionary_.begins_non_word == 0) beginnings &= mask;
    return beginnings & bits_within(segment, from_, to_);
  }

  GPUFS_HD void search_at(std::uint32_t at) const {
    for_each_match(at, [&](const table_entry& entry) {
      if (entry.overlaps != 0) {
        count_chain(entry, at);
      } else {
        counts_.add(entry.word, 1);
      }
      return true;
    });
  }

  // Calls `found` with the entry of each word that matches at `at`, shortest first, until it
  // returns false.
  template <class Found>
  GPUFS_HD void for_each_match(std::uint32_t at, const Found& found) const {
    if ((classes_[window_.byte(at)] & byte_begins) == 0) return;
    const std::uint32_t limit = at + dictionary_.longest;
    for (std::uint32_t end = run_end(at + 1, limit); end <= limit; end = run_end(end + 1, limit)) {
      const table_entry entry = find_entry(dictionary_, text_, at, end - at);
      if (entry.bytes == 0) return;
      if (entry.word != no_word && !found(entry)) return;
      if (entry.continues == 0) return;
    }
  }

  GPUFS_HD bool is_match(const table_entry& word, std::uint32_t at) const {
    return (at == 0 || !word_character_at(at - 1)) &&
           equal_text(text_, at, dictionary_.texts + word.text, word.bytes) &&
           !word_character_at(at + word.bytes);
  }

  // `at` is a match of a word that overlaps itself. Counts its chain if it is the chain's first
  // match in this part.
  GPUFS_HD void count_chain(const table_entry& word, std::uint32_t at) const {
    const std::uint32_t bytes = word.bytes;
    for (std::uint32_t before = at - from_ < bytes ? from_ : at - bytes + 1; before < at;
         ++before) {
      if (is_match(word, before)) return;
    }
    carried_chain& chain = chains_[dictionary_.texts[word.text - 1]];
    // Relaxed: a barrier of the block is between the window that wrote the note and this window.
    const std::uint64_t note = chain.notes[(window_number_ - 1) % 2].load_relaxed();
    std::uint32_t free_from = at;  // where the next counted match can begin
    if (note >> 32 == window_number_ - 1) {
      const std::uint32_t reaches = from_ + static_cast<std::uint32_t>(note);
      if (reaches > free_from) free_from = reaches;
    }
    std::uint32_t count = 0;
    // after the end of the chain's last match, when the chain ends
    std::uint32_t chain_end = at + 1;
    for (std::uint32_t next = at; next < chain_end && next < to_; ++next) {
      if (!is_match(word, next)) continue;
      chain_end = next + bytes;
      if (next < free_from) continue;
      ++count;
      free_from = next + bytes;
    }
    if (count != 0) counts_.add(word.word, count);
    // Relaxed: only the thread that walks the chain across the part's end stores here, and readers
    // come after a barrier.
    if (free_from > to_)
      chain.notes[window_number_ % 2].store_relaxed(std::uint64_t{window_number_} << 32 |
                                                    (free_from - to_));
  }

  const dictionary_ref& dictionary_;
  const std::uint8_t* classes_;
  const text_window& window_;
  const std::uint64_t* text_;
  const std::uint32_t* masks_;
  std::uint32_t from_;
  std::uint32_t to_;
  std::uint32_t window_number_;
  carried_chain* chains_;
  tally& counts_;
};

}  // namespace gpufs::grep

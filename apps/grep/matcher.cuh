// Finds the dictionary's words in a window.
//
// A match can begin where the character before is no word character, and end where the character
// behind is none. So a thread looks at each such beginning of its part of the window, and there at
// one end after the other, as long as the dictionary has a word that goes on.
//
// Matches of one word that overlap ("a-a" in "a-a-a-a") form a chain: each overlaps the one before.
// Of a chain every second one or so counts: the first, and then always the next that begins behind
// the end of the last that counted. The thread that finds the chain's first match walks along the
// chain; the others see that they are not the first. A chain that goes on behind the searched part
// leaves a note for the next window (`carried_chain`).
#pragma once

#include "tally.cuh"
#include "window.cuh"

namespace gpufs::grep {

// For one word that overlaps itself: how far the last match that counted reaches into the next
// window's part. Two notes, so that one window's can be read while the next one's are written. Each
// is its window's number in the upper half and the bytes in the lower; numbers are not used again,
// so old notes need not be removed.
struct carried_chain {
  atomic_word<std::uint64_t> notes[2];
};

// The bits of a segment whose bytes lie in [from, to) of the window.
GPUFS_HD constexpr std::uint32_t bits_within(std::uint32_t segment, std::uint32_t from,
                                             std::uint32_t to) {
  const std::uint32_t first = segment * segment_bytes;
  std::uint32_t bits = ~std::uint32_t{0};
  if (first < from) bits &= ~std::uint32_t{0} << (from - first);
  if (first + segment_bytes > to) bits &= ~std::uint32_t{0} >> (first + segment_bytes - to);
  return bits;
}

// What one thread needs to search the part [from, to) of a window for matches that begin there.
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

  // Bit i is set when a match begins at byte i of the segment. Counts nothing.
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

  // The first offset from `at` on that has no word character; any offset behind `limit` if there is
  // none up to it.
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

  // Calls `found` with the entry of each word that matches at `at`, the shortest first, until it
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
    // Relaxed: a barrier of the block is between the window that wrote the note and this one.
    const std::uint64_t note = chain.notes[(window_number_ - 1) % 2].load_relaxed();
    std::uint32_t free_from = at;  // where the next match that counts can begin
    if (note >> 32 == window_number_ - 1) {
      const std::uint32_t reaches = from_ + static_cast<std::uint32_t>(note);
      if (reaches > free_from) free_from = reaches;
    }
    std::uint32_t count = 0;
    std::uint32_t chain_end = at + 1;  // behind the last match's end when the chain ends
    for (std::uint32_t next = at; next < chain_end && next < to_; ++next) {
      if (!is_match(word, next)) continue;
      chain_end = next + bytes;
      if (next < free_from) continue;
      ++count;
      free_from = next + bytes;
    }
    if (count != 0) counts_.add(word.word, count);
    // Relaxed: only the thread that walks the chain across the part's end gets here, and readers
    // are behind a barrier.
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

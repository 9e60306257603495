#include "rivals/grep/text.hpp"

#include <cstring>

#include "common/for_each_processor.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gpufs::grep {

namespace {

#if defined(__x86_64__)
// 32 bytes a step. Compares bytes as unsigned with the help of their minimum.
__attribute__((target("avx2"))) void mark_by_vectors(const char* text, std::uint64_t* masks,
                                                     std::size_t count) {
  const __m256i of_case = _mm256_set1_epi8(0x20), underscore = _mm256_set1_epi8('_');
  const __m256i first_letter = _mm256_set1_epi8('a'), letters = _mm256_set1_epi8('z' - 'a');
  const __m256i first_digit = _mm256_set1_epi8('0'), digits = _mm256_set1_epi8('9' - '0');
  for (std::size_t k = 0; k < count; ++k) {
    std::uint64_t mask = 0;
    for (unsigned half = 0; half < 2; ++half) {
      const __m256i bytes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + 64 * k + 32 * half));
      const __m256i letter = _mm256_sub_epi8(_mm256_or_si256(bytes, of_case), first_letter);
      const __m256i digit = _mm256_sub_epi8(bytes, first_digit);
      const __m256i is_letter = _mm256_cmpeq_epi8(_mm256_min_epu8(letter, letters), letter);
      const __m256i is_digit = _mm256_cmpeq_epi8(_mm256_min_epu8(digit, digits), digit);
      const __m256i is_any = _mm256_or_si256(_mm256_or_si256(is_letter, is_digit),
                                             _mm256_cmpeq_epi8(bytes, underscore));
      mask |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(is_any))}
              << (32 * half);
    }
    masks[k] = mask;
  }
}
#endif

std::uint64_t eight_bytes_at(const char* text) {
  std::uint64_t bytes;
  std::memcpy(&bytes, text, sizeof bytes);
  return bytes;
}

// Sets the bits of word characters among `count` times 64 bytes.
void mark_word_characters(const char* text, std::uint64_t* masks, std::size_t count) {
#if defined(__x86_64__)
  static const bool has_vectors = __builtin_cpu_supports("avx2") != 0;
  if (has_vectors) return mark_by_vectors(text, masks, count);
#endif
  for (std::size_t k = 0; k < count; ++k) {
    masks[k] = 0;
    for (unsigned i = 0; i < 8; ++i)
      masks[k] |= std::uint64_t{word_characters(eight_bytes_at(text + 64 * k + 8 * i))} << (8 * i);
  }
}

unsigned lowest(std::uint64_t bits) { return static_cast<unsigned>(__builtin_ctzll(bits)); }

// Returns the first place from `at` on that has no word character.
std::uint32_t run_end(const std::uint64_t* masks, std::uint32_t at) {
  std::uint64_t others = ~masks[at / 64] >> (at % 64);
  if (others != 0) return at + lowest(others);
  std::uint32_t k = at / 64 + 1;
  while ((others = ~masks[k]) == 0) ++k;
  return 64 * k + lowest(others);
}

struct search_of_text {
  const keys_ref keys;
  const text_in_file& text;
  const std::uint64_t* masks;
  std::uint32_t* counts;
  std::uint32_t* counted;
  std::uint32_t counted_words;
  std::vector<word_place>& places;

  void count(std::uint32_t word) {
    if (counts[word]++ == 0) counted[counted_words++] = word;
  }
};

// A text that may be a key.
struct candidate {
  std::uint64_t first, last, hash;
  std::uint32_t at, bytes;
};

// Without branches, because they would be unpredictable.
inline candidate make_candidate(const char* memory, std::uint32_t at, std::uint32_t end) {
  const std::uint32_t bytes = end - at, unused_bits = bytes < 8 ? 64 - 8 * bytes : 0;
  const std::uint64_t first = eight_bytes_at(memory + at) << unused_bits >> unused_bits;
  const std::uint64_t last = eight_bytes_at(memory + end - 8) & (bytes > 8 ? ~std::uint64_t{0} : 0);
  return {first, last, hash_key(first, last, bytes), at, bytes};
}

inline const key_entry* find(const search_of_text& s, const candidate& c) {
  return s.keys.find(c.hash, c.first, c.last, c.bytes, [&](const std::uint64_t* text) {
    return std::memcmp(reinterpret_cast<const char*>(text) + 8, s.text.memory + c.at + 8,
                       c.bytes - 16) == 0;
  });
}

// Counts the words that begin at a candidate. The key is a word that can overlap itself, or a
// prefix of longer words.
void look_further(search_of_text& s, candidate c, const key_entry* key) {
  while (key != nullptr) {
    if (key->overlaps != 0)
      s.places.push_back({s.text.file, key->word, s.text.at + c.at - lead_bytes});
    else if (key->word != no_word) s.count(key->word);
    if (key->continues == 0) return;
    const std::uint32_t end = run_end(s.masks, c.at + c.bytes + 1);
    if (end - c.at > s.keys.longest || end > s.text.bytes) return;
    c = make_candidate(s.text.memory, c.at, end);
    key = find(s, c);
  }
}

// Looks up many candidates at a time, in steps. Each step prefetches the memory that the next step
// reads.
class candidates {
 public:
  static constexpr std::uint32_t room = 64;  // for the starts in 64 bytes

  explicit candidates(search_of_text& s) : s_(s) {}
  bool is_full() const { return count_ > capacity - room; }

  void add(std::uint32_t at, std::uint32_t end) {
    all_[count_] = make_candidate(s_.text.memory, at, end);
    __builtin_prefetch(s_.keys.filter + s_.keys.filter_word(all_[count_].hash));
    ++count_;
  }

  void look_up() {
    std::uint32_t left = 0;
    for (std::uint32_t i = 0; i < count_; ++i) {
      const candidate c = all_[i];
      all_[left] = c;
      __builtin_prefetch(s_.keys.entries + s_.keys.entry_slot(c.hash));
      left += static_cast<std::uint32_t>(s_.keys.may_have(c.hash)) &
              static_cast<std::uint32_t>(c.bytes <= s_.keys.longest);
    }
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < left; ++i) {
      const key_entry* const key = find(s_, all_[i]);
      if (key == nullptr) continue;
      if (key->overlaps != 0 || key->continues != 0) {
        look_further(s_, all_[i], key);
        continue;
      }
      words_[found++] = key->word;
      __builtin_prefetch(s_.counts + key->word);
    }
    for (std::uint32_t i = 0; i < found; ++i) s_.count(words_[i]);
    count_ = 0;
  }

 private:
  static constexpr std::uint32_t capacity = 256;

  search_of_text& s_;
  std::uint32_t count_ = 0;
  candidate all_[capacity];
  std::uint32_t words_[capacity];
};

GPUFS_FOR_EACH_PROCESSOR void look_through(search_of_text& s, std::uint32_t from,
                                           std::uint32_t to) {
  candidates some(s);
  for (std::uint32_t k = from / 64; 64 * k < to; ++k) {
    const std::uint64_t mask = s.masks[k], next = s.masks[k + 1];
    const std::uint64_t boundary = ~(mask << 1 | (k == 0 ? 0 : s.masks[k - 1] >> 63));
    // Most words of a text are shorter than all words of the dictionary. This skips all of them at
    // once.
    std::uint64_t starts = mask & boundary;
    for (unsigned i = 1; i < s.keys.shortest_run; ++i) starts &= mask >> i | next << (64 - i);
    if (s.keys.begins_non_word != 0) starts |= ~mask & boundary;
    if (64 * k < from) starts &= ~std::uint64_t{0} << (from - 64 * k);
    if (64 * k + 64 > to) starts &= ~std::uint64_t{0} >> (64 * k + 64 - to);
    if (some.is_full()) some.look_up();
    for (; starts != 0; starts &= starts - 1) {
      const unsigned i = lowest(starts);
      const std::uint32_t at = 64 * k + i;
      // The 63 characters after the first one.
      const std::uint64_t others = ~(mask >> i | next << 1 << (63 - i)) >> 1;
      some.add(at, others != 0 ? at + 1 + lowest(others) : run_end(s.masks, at + 1));
    }
  }
  some.look_up();
}

}  // namespace

text_searcher::text_searcher(const key_table& keys, findings& to)
    : keys_(keys.ref()), to_(to), counts_(keys.dictionary().words.size()),
      counted_(keys.dictionary().words.size()) {}

void text_searcher::search(const text_in_file& text, std::uint32_t bytes) {
  const std::size_t count = text.bytes / 64 + 1;
  if (masks_.size() < count + 1) masks_.resize(count + 1);
  mark_word_characters(text.memory, masks_.data(), count);
  masks_[count - 1] &= (std::uint64_t{1} << text.bytes % 64) - 1;
  masks_[count] = 0;
  search_of_text s{keys_,           text,           masks_.data(), counts_.data(),
                   counted_.data(), counted_words_, to_.places};
  look_through(s, lead_bytes, lead_bytes + bytes);
  counted_words_ = s.counted_words;
}

void text_searcher::end_section(std::uint32_t file) {
  if (counted_words_ == 0) return;
  to_.sections.push_back({file, counted_words_, to_.counts.size()});
  for (std::uint32_t k = 0; k < counted_words_; ++k) {
    std::uint32_t& count = counts_[counted_[k]];
    to_.counts.push_back({counted_[k], count});
    count = 0;
  }
  counted_words_ = 0;
}

}  // namespace gpufs::grep

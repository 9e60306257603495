// Builds the flat dictionary.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <unordered_set>

#include "dictionary_table.hpp"
#include "grep.hpp"
#include "word_list.hpp"

namespace gpufs::grep {

namespace {

bool word_character(char c) { return is_word_character(static_cast<std::uint8_t>(c)); }

// Two matches can overlap if the word has a border (a prefix that is also a suffix) and, laid over
// itself there, has the boundaries that both matches need. The character before the second match is
// in the first match; the character after the first is in the second. "bye-bye" can overlap, in
// "bye-bye-bye". "banana" cannot, although "ana" is a border.
bool overlaps_itself(const std::string& word) {
  for (std::size_t shift = 1; shift < word.size(); ++shift) {
    const std::size_t border = word.size() - shift;
    if (!word_character(word[shift - 1]) && !word_character(word[border]) &&
        word.compare(shift, border, word, 0, border) == 0) {
      return true;
    }
  }
  return false;
}

class builder {
 public:
  builder(std::vector<std::string> words, letter_case c)
      : flat_(std::make_shared<flat_dictionary>()) {
    std::erase(words, std::string());
    flat_->folds_case = c == letter_case::ignored;
    if (flat_->folds_case) keep_first_spellings(words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    flat_->words = std::move(words);
    searched_ = flat_->words;
    if (flat_->folds_case) std::for_each(searched_.begin(), searched_.end(), fold_word);
  }

  std::shared_ptr<const flat_dictionary> build() {
    classify_bytes();
    add_texts();
    flat_->entries.assign(capacity_for(keys_bound()), table_entry{});
    for (std::uint32_t w = 0; w < searched_.size(); ++w) add_word(w);
    return flat_;
  }

 private:
  static void fold_word(std::string& word) {
    for (char& c : word) c = static_cast<char>(fold_case(static_cast<std::uint8_t>(c)));
  }

  static void keep_first_spellings(std::vector<std::string>& words) {
    std::unordered_set<std::string> folded;
    std::erase_if(words, [&](std::string word) {
      fold_word(word);
      return !folded.insert(std::move(word)).second;
    });
  }

  void classify_bytes() {
    flat_->classes.assign(256, byte_breaks);
    for (const std::string& word : searched_) {
      flat_->classes[static_cast<std::uint8_t>(word[0])] |= byte_begins;
      flat_->begins_non_word |= !word_character(word[0]);
      flat_->longest = std::max(flat_->longest, static_cast<std::uint32_t>(word.size()));
      if (!overlaps_itself(word)) continue;
      for (const char c : word)
        flat_->classes[static_cast<std::uint8_t>(c)] &= static_cast<std::uint8_t>(~byte_breaks);
    }
  }

  void add_texts() {
    for (const std::string& word : searched_) {
      if (overlaps_itself(word)) flat_->texts.push_back(flat_->overlapping++);
      starts_.push_back(flat_->texts.size());
      flat_->texts.resize(flat_->texts.size() + (word.size() + 7) / 8);
      std::memcpy(&flat_->texts[starts_.back()], word.data(), word.size());
    }
    flat_->texts.push_back(0);  // eight_bytes() reads one word more than it needs
    if (flat_->texts.size() > no_word) throw error(EINVAL, "the dictionary is too large");
  }

  // An upper bound: prefixes that several words share are counted for each word.
  std::size_t keys_bound() const {
    std::size_t keys = 0;
    for (const std::string& word : searched_) {
      keys += 1 + static_cast<std::size_t>(std::count_if(
                      word.begin() + 1, word.end(), [](char c) { return !word_character(c); }));
    }
    return keys;
  }

  static std::size_t capacity_for(std::size_t keys) {
    std::size_t capacity = 16;
    while (capacity < 2 * keys) capacity *= 2;
    if (capacity > std::size_t{1} << 31) throw error(EINVAL, "the dictionary is too large");
    return capacity;
  }

  void add_word(std::uint32_t w) {
    const std::string& word = searched_[w];
    for (std::uint32_t bytes = 1; bytes < word.size(); ++bytes) {
      if (!word_character(word[bytes])) entry_of(w, bytes).continues = 1;
    }
    table_entry& entry = entry_of(w, static_cast<std::uint32_t>(word.size()));
    entry.word = w;
    entry.overlaps = overlaps_itself(word) ? 1 : 0;
    // The text may be that of a longer word whose prefix was added first. The ordinal is only
    // before this word's own text.
    entry.text = static_cast<std::uint32_t>(starts_[w]);
  }

  // Returns the entry of the first `bytes` of word `w`. Creates it if there is none.
  table_entry& entry_of(std::uint32_t w, std::uint32_t bytes) {
    const auto mask = static_cast<std::uint32_t>(flat_->entries.size() - 1);
    const auto at = static_cast<std::uint32_t>(starts_[w]);
    // From the text's own start, so that the byte position stays small.
    const std::uint64_t* text = flat_->texts.data() + at;
    const std::uint64_t hash = hash_text(text, 0, bytes);
    for (std::uint32_t slot = static_cast<std::uint32_t>(hash) & mask;; slot = (slot + 1) & mask) {
      table_entry& entry = flat_->entries[slot];
      if (entry.bytes == 0) {
        entry = {static_cast<std::uint32_t>(hash >> 32), at, no_word,
                 static_cast<std::uint16_t>(bytes),      0,  0};
        return entry;
      }
      if (entry.bytes == bytes && equal_text(text, 0, flat_->texts.data() + entry.text, bytes))
        return entry;
    }
  }

  std::shared_ptr<flat_dictionary> flat_;
  std::vector<std::string> searched_;  // flat_->words, folded if the case is ignored
  std::vector<std::size_t> starts_;    // of each word's text, in 8-byte words
};

}  // namespace

dictionary dictionary::read(const std::vector<std::string>& files, std::vector<std::string> more,
                            letter_case c) {
  for (const std::string& file : files) {
    std::vector<std::string> words = read_word_list(file);
    std::move(words.begin(), words.end(), std::back_inserter(more));
  }
  return dictionary(std::move(more), c);
}

dictionary::dictionary(std::vector<std::string> words, letter_case c) {
  for (const std::string& word : words) {
    const char* reason =
        word.find('\n') != std::string::npos ? "the word has a newline" : reason_to_refuse(word);
    if (reason != nullptr) throw error(EINVAL, std::string("dictionary: ") + reason);
  }
  flat_ = builder(std::move(words), c).build();
}

const std::vector<std::string>& dictionary::words() const { return flat_->words; }

}  // namespace gpufs::grep

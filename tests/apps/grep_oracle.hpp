// GNU grep's counts, computed in the plainest way; tests/python/test_grep_against_grep.py holds
// this algorithm against the real grep. And a fixture that searches files in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "grep/grep.hpp"
#include "grep/grep_buffer.hpp"
#include "support/device.hpp"
#include "support/memory_backend.hpp"

namespace gpufs::testing {

inline bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

inline std::uint64_t count_word(const std::string& text, const std::string& word) {
  std::uint64_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos;) {
    const std::size_t end = at + word.size();
    const bool whole = (at == 0 || !is_word_byte(text[at - 1])) &&
                       (end == text.size() || !is_word_byte(text[end]));
    if (whole) ++count;
    at = text.find(word, whole ? end : at + 1);
  }
  return count;
}

// The part of the text whose matches GNU grep prints.
inline std::string counted_part(const std::string& text) {
  const std::size_t nul = text.find('\0');
  if (nul == std::string::npos) return text;
  if (nul < grep::first_read_bytes) return {};
  grep::grep_buffer buffer(text.size());
  std::size_t end = 0;
  std::size_t line = 0;
  for (;;) {
    const std::uint64_t bytes = buffer.read(end - line);
    if (nul < end + bytes) return text.substr(0, line);
    end += bytes;
    const std::size_t newline = text.rfind('\n', end - 1);
    line = newline == std::string::npos ? 0 : newline + 1;
  }
}

// Of grep -c: lines end at newlines and NULs.
inline std::uint64_t count_lines(const std::string& text, const std::set<std::string>& words) {
  static const std::string ends("\n\0", 2);
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(ends, at), text.size());
    const std::string line = text.substr(at, end - at);
    count += std::any_of(words.begin(), words.end(),
                         [&](const std::string& w) { return count_word(line, w) != 0; });
    at = end + 1;
  }
  return count;
}

using counts = std::map<std::pair<std::string, std::string>, std::uint64_t>;  // by path and word

inline counts expected_counts(const std::map<std::string, std::string>& files,
                              const std::set<std::string>& words) {
  counts all;
  for (const auto& [path, text] : files) {
    const std::string part = counted_part(text);
    for (const std::string& word : words) {
      if (const std::uint64_t count = count_word(part, word); count != 0) all[{path, word}] = count;
    }
  }
  return all;
}

// A mount over files in memory.
class grep_world {
 public:
  explicit grep_world(mount_options options = grep_options()) {
    if (options.backend == nullptr) options.backend = backend_;
    mount_ = std::make_unique<mount>(options);
  }

  static mount_options grep_options() {
    mount_options options = base_options();
    options.cache_bytes = std::uint64_t{8} << 20;
    options.backend = nullptr;
    return options;
  }

  mount& m() { return *mount_; }
  memory_backend& backend() { return *backend_; }
  std::shared_ptr<memory_backend> shared_backend() { return backend_; }

  // Searches and checks the form of the result; failures are the caller's to expect.
  counts search(const std::map<std::string, std::string>& files,
                const std::set<std::string>& words) {
    std::vector<grep::file_item> list;
    for (const auto& [path, text] : files) {
      backend_->write(path, text);
      list.push_back({path, text.size()});
    }
    return search_list(grep::dictionary({words.begin(), words.end()}), list);
  }

  counts search_list(const grep::dictionary& words, const std::vector<grep::file_item>& list) {
    last = grep::search(*mount_, words, list);
    counts all;
    const grep::match* before = nullptr;
    for (const grep::match& m : last.matches) {
      EXPECT_GT(m.count, 0u);
      if (before != nullptr) {
        EXPECT_LT(std::tie(list[before->file].path, words.words()[before->word]),
                  std::tie(list[m.file].path, words.words()[m.word]));
      }
      before = &m;
      all[{list[m.file].path, words.words()[m.word]}] = m.count;
    }
    EXPECT_EQ(last.files + last.failures.size(), list.size());
    return all;
  }

  grep::result last;

 private:
  std::shared_ptr<memory_backend> backend_ = std::make_shared<memory_backend>();
  std::unique_ptr<mount> mount_;
};

// Says which counts differ, and not all that are alike.
inline void expect_same(const counts& expected, const counts& found, const std::string& what) {
  for (const auto& [key, count] : expected) {
    const auto other = found.find(key);
    EXPECT_EQ(count, other == found.end() ? 0 : other->second)
        << what << ": " << key.first << ", " << ::testing::PrintToString(key.second);
  }
  for (const auto& [key, count] : found) {
    EXPECT_TRUE(expected.contains(key)) << what << ": " << key.first << ", "
                                        << ::testing::PrintToString(key.second) << " x " << count;
  }
}

inline std::string repeat(const std::string& text, std::size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (std::size_t k = 0; k < times; ++k) all += text;
  return all;
}

}  // namespace gpufs::testing

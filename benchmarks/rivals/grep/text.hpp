// Finds the dictionary's words in a text, on the CPU.
#pragma once

#include "rivals/grep/findings.hpp"
#include "rivals/grep/keys.hpp"

namespace gpufs::grep {

// A text in memory, with the bytes before it (files.hpp).
struct text_in_file {
  // Begins `lead_bytes` before the text. 64 bytes after the text are readable; their values do
  // not matter.
  const char* memory;
  std::uint32_t bytes;  // including the bytes before the text
  std::uint32_t file;
  std::uint64_t at;  // offset of the text in its file
};

// Used by one thread.
class text_searcher {
 public:
  text_searcher(const key_table& keys, findings& to);

  // Finds the matches that begin in the first `bytes` of a text. The text continues for the longest
  // word and one character after them, unless the file ends.
  void search(const text_in_file& text, std::uint32_t bytes);

  // Assigns the counts so far to this file.
  void end_section(std::uint32_t file);

 private:
  const keys_ref keys_;
  findings& to_;
  std::vector<std::uint64_t> masks_;    // bit i of number k: byte 64 k + i is a word character
  std::vector<std::uint32_t> counts_;   // by word
  std::vector<std::uint32_t> counted_;  // words whose count is not 0, in no order
  std::uint32_t counted_words_ = 0;
};

}  // namespace gpufs::grep

// Finds the dictionary's words in a text, on the CPU.
#pragma once

#include "rival_findings.hpp"
#include "rival_keys.hpp"

namespace gpufs::grep {

// A text in memory, with what is in front of it (rival_files.hpp).
struct text_in_file {
  const char*
      // from `lead_bytes` in front of the text on. 64 bytes behind it can be read, and do not
      // matter
      memory;
  std::uint32_t bytes;  // with those in front
  std::uint32_t file;
  std::uint64_t at;  // offset of the text in its file
};

// Of one thread.
class text_searcher {
 public:
  text_searcher(const key_table& keys, findings& to);

  // Finds the matches that begin in the first `bytes` of a text. Behind them it has as much as a
  // word can be long, and a character; or the file ends.
  void search(const text_in_file& text, std::uint32_t bytes);

  // What was counted until now is of this file.
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

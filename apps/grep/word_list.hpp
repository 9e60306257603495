// Lists of words as text: one word a line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpufs::grep {

// Why a word cannot be searched for, or null. A newline in it is for the caller to find.
const char* reason_to_refuse(std::string_view word);

// Splits a text that comes in pieces. A line ends with "\n" or "\r\n", the last one also with
// nothing.
class word_list {
 public:
  // `name` is the path in errors.
  explicit word_list(std::string name) : name_(std::move(name)) {}

  // Throws gpufs::error (EINVAL, with the line's number) as soon as a line cannot be a word, so a
  // text without newlines is never kept.
  void take(std::string_view piece);

  // Ends the text. Returns its words in their order, without empty ones. Throws as `take` does.
  std::vector<std::string> end();

 private:
  void end_line();
  [[noreturn]] void refuse(const char* reason) const;

  std::string name_;
  std::vector<std::string> words_;
  std::string line_;  // the beginning of a line whose end has not come
  std::size_t line_number_ = 1;
};

// Reads a list from a file, which may be a pipe. Throws gpufs::error with the path: as
// word_list::take does, or what opening and reading gave.
std::vector<std::string> read_word_list(const std::string& path);

}  // namespace gpufs::grep

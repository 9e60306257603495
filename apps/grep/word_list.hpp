// Word lists as text: one word a line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpufs::grep {

// Returns why a word cannot be searched for, or null. Callers check for newlines themselves.
const char* reason_to_refuse(std::string_view word);

// Splits a text that arrives in pieces. A line ends with "\n" or "\r\n"; the last line may end
// without either.
class word_list {
 public:
  // Errors have `name` as their path.
  explicit word_list(std::string name) : name_(std::move(name)) {}

  // Throws gpufs::error (EINVAL, with the line's number) as soon as a line cannot be a word. So it
  // never keeps a long text without newlines.
  void take(std::string_view piece);

  // Ends the text. Returns its words in order, without empty words. Throws as `take` does.
  std::vector<std::string> end();

 private:
  void end_line();
  [[noreturn]] void refuse(const char* reason) const;

  std::string name_;
  std::vector<std::string> words_;
  std::string line_;  // the beginning of a line that has no end yet
  std::size_t line_number_ = 1;
};

// Reads a list from a file, which may be a pipe. Throws gpufs::error with the path: the error of
// word_list::take, open, or read.
std::vector<std::string> read_word_list(const std::string& path);

}  // namespace gpufs::grep

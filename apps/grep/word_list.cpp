#include "word_list.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "common/owned_file.hpp"
#include "grep.hpp"

namespace gpufs::grep {

namespace {

constexpr std::size_t piece_bytes = std::size_t{64} << 10;
constexpr std::size_t line_bytes_max = word_bytes_max + 1;  // a word and "\r"

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

const char* reason_to_refuse(std::string_view word) {
  if (word.substr(0, word_bytes_max).find('\0') != std::string_view::npos)
    return "the word has a NUL byte";
  if (word.size() > word_bytes_max) return "the word is longer than 255 bytes";
  return nullptr;
}

void word_list::refuse(const char* reason) const {
  throw error(EINVAL, "line " + std::to_string(line_number_) + ": " + reason, name_);
}

void word_list::end_line() {
  const std::string_view word = without_return(line_);
  if (const char* reason = reason_to_refuse(word)) refuse(reason);
  if (!word.empty()) words_.emplace_back(word);
  line_.clear();
  ++line_number_;
}

void word_list::take(std::string_view piece) {
  while (!piece.empty()) {
    const std::size_t newline = piece.find('\n');
    const std::string_view rest = piece.substr(0, newline);
    // One byte too many is enough to reject the line.
    line_.append(rest.substr(0, line_bytes_max + 1 - line_.size()));
    if (newline != std::string_view::npos) {
      end_line();
      piece.remove_prefix(newline + 1);
      continue;
    }
    // "\r" at the end may belong to the end of the line; then it is not part of the word.
    if (const char* reason = reason_to_refuse(without_return(line_))) refuse(reason);
    return;
  }
}

std::vector<std::string> word_list::end() {
  end_line();
  return std::move(words_);
}

std::vector<std::string> read_word_list(const std::string& path) {
  const owned_file file(path, O_RDONLY | O_NOCTTY);
  word_list list(path);
  const auto piece = std::make_unique_for_overwrite<char[]>(piece_bytes);
  for (;;) {
    const ssize_t bytes = read(file.fd(), piece.get(), piece_bytes);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) throw error(errno, "cannot be read", path);
    if (bytes == 0) return list.end();
    list.take({piece.get(), static_cast<std::size_t>(bytes)});
  }
}

}  // namespace gpufs::grep

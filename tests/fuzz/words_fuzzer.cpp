// Lists of words for grep, which come in pieces of any size, against a splitter that has the whole
// text.
#include <algorithm>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/targets.hpp"
#include "gpufs/error.hpp"
#include "grep/word_list.hpp"

namespace gpufs::testing {
namespace {

struct list_contents {
  std::vector<std::string> words;
  bool is_refused = false;
};

list_contents split(const std::string& text) {
  list_contents found;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string word = text.substr(at, end - at);
    if (word.ends_with('\r')) word.pop_back();
    if (word.size() > 255 || word.find('\0') != std::string::npos) return {{}, true};
    if (!word.empty()) found.words.push_back(word);
    at = end + 1;
  }
  return found;
}

}  // namespace

// The first byte says how large the pieces are.
void fuzz_words(std::span<const std::uint8_t> input) {
  fuzz_input in(input);
  const std::size_t piece = in.byte() % 64 + std::size_t{1};
  const std::string text = in.text(in.left());
  list_contents got;
  try {
    grep::word_list list("LIST");
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string exact = text.substr(at, piece);
      list.take(exact);
    }
    got.words = list.end();
  } catch (const error& e) {
    require(e.code().value() == EINVAL, "another error than a list has");
    got.is_refused = true;
  }
  const list_contents wanted = split(text);
  require(got.is_refused == wanted.is_refused, "a list is refused, or taken, and should not be");
  require(wanted.is_refused || got.words == wanted.words, "other words than the list has");
}

}  // namespace gpufs::testing

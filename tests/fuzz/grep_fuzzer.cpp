// What is searched, and for what, against the plainest search.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps/grep_oracle.hpp"
#include "fuzz/input.hpp"
#include "fuzz/targets.hpp"

namespace gpufs::testing {

// The first line has the words, with blanks between them, the rest is the text.
void fuzz_grep(std::span<const std::uint8_t> input) {
  static grep_world world;  // one for all inputs
  fuzz_input in(input);
  const std::string line = in.line();
  std::set<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, std::min<std::size_t>(end - at, 255));
    if (!word.empty() && word.find('\0') == std::string::npos && words.size() < 16)
      words.insert(word);
    at = end + 1;
  }
  if (words.empty()) return;
  const std::string text = in.text(in.left());
  world.backend().write("text", text);
  const std::vector<grep::file_item> files{{"text", text.size()}};
  const grep::result found =
      grep::search(world.m(), grep::dictionary({words.begin(), words.end()}), files);
  counts got;
  const std::vector<std::string> sorted(words.begin(), words.end());
  for (const grep::match& m : found.matches) got[{"text", sorted.at(m.word)}] = m.count;
  require(found.failures.empty(), "a file that cannot be read");
  require(got == expected_counts({{"text", text}}, words), "other counts than there are");
}

}  // namespace gpufs::testing

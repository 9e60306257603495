// The corpus of each fuzzer, and what can be made of it without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/mutator.hpp"
#include "fuzz/targets.hpp"
#include "support/seeds.hpp"
#include "support/work_budget.hpp"

namespace gpufs::testing {

inline void PrintTo(const fuzz_target& target, std::ostream* out) { *out << target.name; }

namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of a file NAME.hex: its bytes in hexadecimal digits, and comments from # on.
std::string decoded(const std::string& text) {
  std::string bytes, digits;
  bool in_comment = false;
  for (const char c : text) {
    in_comment = c == '#' || (in_comment && c != '\n');
    if (!in_comment && std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  }
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::vector<std::string> corpus_of(const fuzz_target& target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(GPUFS_TEST_CORPUS) / target.name))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const std::filesystem::path& path : paths) {
    const std::string content = content_of(path);
    corpus.push_back(path.extension() == ".hex" ? decoded(content) : content);
  }
  return corpus;
}

class fuzz : public ::testing::TestWithParam<fuzz_target> {
 protected:
  // In memory of exactly so many bytes.
  static void run(const std::string& input) {
    const std::vector<std::uint8_t> bytes(input.begin(), input.end());
    const current_input current(bytes);
    GetParam().run(bytes);
  }
};

std::string name_of_target(const ::testing::TestParamInfo<fuzz_target>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(of, fuzz,
                         ::testing::ValuesIn(fuzz_targets().begin(), fuzz_targets().end()),
                         name_of_target);
TEST_P(fuzz, finds_nothing_in_the_corpus) {
  const std::vector<std::string> corpus = corpus_of(GetParam());
  EXPECT_GE(corpus.size(), 5u) << "inputs to begin with";
  for (const std::string& input : corpus) run(input);
}

TEST_P(fuzz, finds_nothing_in_what_is_made_of_the_corpus) {
  const std::vector<std::string> corpus = corpus_of(GetParam());
  ASSERT_FALSE(corpus.empty());
  for (work_budget budget(is_sanitized ? 4 : 20); budget.next();) {
    SCOPED_TRACE(budget.replay());
    mutator inputs(corpus, budget.seed());
    for (unsigned i = 0; i < GetParam().inputs; ++i) run(inputs.next());
    budget.covers("inputs", GetParam().inputs);
  }
}

}  // namespace
}  // namespace gpufs::testing

// gpufs::grep: dictionaries, text in 8-byte words, and the walk through directories.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/grep_oracle.hpp"
#include "grep/dictionary_table.hpp"

namespace gpufs::testing {
namespace {

namespace fs = std::filesystem;

class temporary_folder {
 public:
  temporary_folder() {
    char name[] = "/tmp/gpufs-grep-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp");
    path = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    return path + "/" + name;
  }
  std::string path;
};

TEST(GrepText, ClassifiesEveryByteAtEveryPlace) {
  for (int byte = 0; byte < 256; ++byte) {
    for (int place = 0; place < 8; ++place) {
      for (const std::uint64_t around :
           {std::uint64_t{0}, ~std::uint64_t{0}, eightfold('a'), eightfold(0x80)}) {
        const std::uint64_t text =
            (around & ~(std::uint64_t{0xff} << 8 * place)) | std::uint64_t(byte) << 8 * place;
        const std::uint32_t others =
            is_word_byte(static_cast<char>(around & 0xff)) ? 0xff & ~(1u << place) : 0;
        EXPECT_EQ(grep::word_characters(text),
                  others | (is_word_byte(static_cast<char>(byte)) ? 1u << place : 0))
            << byte << " at " << place;
        EXPECT_EQ(has_zero_byte(text), byte == 0 || around == 0);
      }
    }
  }
}

TEST(GrepText, FoldsTheCaseOfAsciiLettersOnly) {
  for (int byte = 0; byte < 256; ++byte) {
    const int folded = byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte;
    for (int place = 0; place < 8; ++place) {
      for (const std::uint64_t around :
           {std::uint64_t{0}, ~std::uint64_t{0}, eightfold('a'), eightfold(0x80)}) {
        const std::uint64_t others = around & ~(std::uint64_t{0xff} << 8 * place);
        EXPECT_EQ(grep::fold_case(others | std::uint64_t(byte) << 8 * place),
                  others | std::uint64_t(folded) << 8 * place)
            << byte << " at " << place;
      }
    }
  }
}

TEST(GrepText, HashesAndComparesAtEveryPlaceAlike) {
  const std::string word = "The quick brown fox";
  for (std::uint32_t bytes = 1; bytes <= word.size(); ++bytes) {
    std::uint64_t plain[4] = {};
    std::memcpy(plain, word.data(), bytes);
    const std::uint64_t hash = grep::hash_text(plain, 0, bytes);
    for (std::uint32_t at = 0; at < 16; ++at) {
      std::uint64_t text[8];
      std::memset(text, 'x', sizeof(text));
      std::memcpy(reinterpret_cast<char*>(text) + at, word.data(), bytes);
      EXPECT_EQ(grep::hash_text(text, at, bytes), hash);
      EXPECT_TRUE(grep::equal_text(text, at, plain, bytes));
      reinterpret_cast<char*>(text)[at + bytes - 1] ^= 1;
      EXPECT_FALSE(grep::equal_text(text, at, plain, bytes));
    }
  }
}

TEST(GrepDictionary, IsSortedAndHasEachWordOnce) {
  const grep::dictionary d({"b", "a", "", "b", "\xff", "A", "a-b"});
  EXPECT_EQ(d.words(), (std::vector<std::string>{"A", "a", "a-b", "b", "\xff"}));
}

TEST(GrepDictionary, ReadsOneWordALine) {
  const temporary_folder folder;
  const std::string longest(255, 'x');
  const grep::dictionary d = grep::dictionary::read(
      {folder.write("words", "foo\n\nbar \r\n" + longest + "\r\n\r\nfoo\n'tis")});
  EXPECT_EQ(d.words(), (std::vector<std::string>{"'tis", "bar ", "foo", longest}));
}

TEST(GrepDictionary, KeepsTheFirstSpellingWhereTheCaseIsIgnored) {
  const grep::dictionary d({"foo", "Foo", "B", "b", "a-A", "\xc4", "\xe4", "FOO"},
                           grep::letter_case::ignored);
  EXPECT_EQ(d.words(), (std::vector<std::string>{"B", "a-A", "foo", "\xc4", "\xe4"}));
  EXPECT_EQ(d.flat().overlapping, 1u);
}

TEST(GrepDictionary, HasTheWordsOfAllFilesAndMore) {
  const temporary_folder folder;
  const grep::dictionary d =
      grep::dictionary::read({folder.write("1", "b\na\n"), folder.write("2", "c\nb")}, {"d", "a"});
  EXPECT_EQ(d.words(), (std::vector<std::string>{"a", "b", "c", "d"}));
}

TEST(GrepDictionary, RefusesWordsThatCannotBeSearched) {
  const temporary_folder folder;
  const auto refusal = [](const auto& make) -> std::pair<int, std::string> {
    try {
      make();
      return {0, ""};
    } catch (const error& e) {
      return {e.code().value(), e.what()};
    }
  };
  const std::string path = folder.write("long", "a\nb\n" + std::string(256, 'x') + "\n");
  const auto [number, text] = refusal([&] { grep::dictionary::read({path}); });
  EXPECT_EQ(number, EINVAL);
  EXPECT_NE(text.find("line 3"), std::string::npos) << text;
  EXPECT_NE(text.find(path), std::string::npos) << text;
  EXPECT_EQ(refusal([&] {
              grep::dictionary::read({folder.write("nul", std::string("a\0b\n", 4))});
            }).first,
            EINVAL);
  EXPECT_EQ(refusal([&] { grep::dictionary::read({folder.path + "/missing"}); }).first, ENOENT);
  EXPECT_EQ(refusal([&] { grep::dictionary::read({folder.path}); }).first, EISDIR);
  EXPECT_EQ(refusal([] { grep::dictionary({"a\nb"}); }).first, EINVAL);
  EXPECT_EQ(refusal([] { grep::dictionary({std::string("a\0", 2)}); }).first, EINVAL);
  EXPECT_EQ(refusal([] { grep::dictionary({std::string(256, 'x')}); }).first, EINVAL);
}

TEST(GrepDictionary, KnowsWhichWordsOverlapThemselves) {
  const grep::dictionary d(
      {"a-a", "banana", "bye-bye", "--", "a-b", "''", "a", "-", "aa", "a-ba", "x y x"});
  std::set<std::string> overlapping;
  for (const grep::table_entry& entry : d.flat().entries) {
    if (entry.bytes != 0 && entry.overlaps != 0) overlapping.insert(d.words()[entry.word]);
  }
  EXPECT_EQ(overlapping, (std::set<std::string>{"a-a", "bye-bye", "--", "''", "x y x"}));
  EXPECT_EQ(d.flat().overlapping, overlapping.size());
  EXPECT_EQ(d.flat().classes['a'] & grep::byte_breaks, 0);
  EXPECT_NE(d.flat().classes['n'] & grep::byte_breaks, 0);
  EXPECT_NE(d.flat().classes['\n'] & grep::byte_breaks, 0);
  EXPECT_NE(d.flat().classes[0] & grep::byte_breaks, 0);
}

// As `grep -r foo ROOT...` names its files.
TEST(GrepWalk, FindsTheFilesThatGrepFinds) {
  const temporary_folder folder;
  const std::string& root = folder.path;
  fs::create_directories(root + "/tree/sub/.hidden/deep");
  fs::create_directories(root + "/elsewhere");
  folder.write("tree/a", "1");
  folder.write("tree/.b", "22");
  folder.write("tree/sub/.hidden/deep/c", "333");
  folder.write("elsewhere/d", "4444");
  fs::create_symlink(root + "/elsewhere", root + "/tree/link_to_directory");
  fs::create_symlink(root + "/elsewhere/d", root + "/tree/link_to_file");
  fs::create_symlink(root + "/nowhere", root + "/tree/dangling");
  fs::create_symlink(root + "/elsewhere", root + "/root_link");
  ASSERT_EQ(mkfifo((root + "/tree/fifo").c_str(), 0600), 0);

  std::vector<grep::path_failure> failures;
  const auto found = grep::walk(
      {root + "/tree///", root + "/root_link", root + "/tree/link_to_file", root + "/tree/a"},
      failures);
  std::vector<std::pair<std::string, std::uint64_t>> listed;
  for (const grep::file_item& file : found)
    listed.emplace_back(file.path.substr(root.size()), file.size_hint);
  EXPECT_EQ(listed,
            (std::vector<std::pair<std::string, std::uint64_t>>{{"/root_link/d", 4},
                                                                {"/tree/.b", 2},
                                                                {"/tree/a", 1},
                                                                {"/tree/a", 1},
                                                                {"/tree/link_to_file", 4},
                                                                {"/tree/sub/.hidden/deep/c", 3}}));
  EXPECT_TRUE(failures.empty());

  EXPECT_TRUE(
      grep::walk({root + "/nowhere", root + "/tree/fifo", root + "/tree/dangling"}, failures)
          .empty());
  ASSERT_EQ(failures.size(), 3u);
  EXPECT_EQ(failures[0].error, ENOENT);
  EXPECT_EQ(failures[1].error, ENOENT);  // sorted: the dangling link
  EXPECT_EQ(failures[2].error, EINVAL);
  EXPECT_NE(std::string(failures[2].reason).find("FIFO"), std::string::npos);
}

TEST(GrepWalk, RefusesPseudoFileSystems) {
  struct statfs file_system;
  if (statfs("/proc/self", &file_system) != 0 || file_system.f_type != PROC_SUPER_MAGIC)
    GTEST_SKIP() << "no /proc";
  const temporary_folder folder;
  folder.write("a", "1");
  fs::create_symlink("/proc/self/status", folder.path + "/link");
  std::vector<grep::path_failure> failures;
  const std::vector<std::string> roots = {"/proc/self", "/proc/self/status", folder.path + "/link"};
  EXPECT_TRUE(grep::walk(roots, failures).empty());
  ASSERT_EQ(failures.size(), roots.size());
  for (const grep::path_failure& failure : failures) {
    EXPECT_EQ(failure.error, EINVAL);
    EXPECT_NE(std::string(failure.reason).find("pseudo"), std::string::npos) << failure.path;
  }
  EXPECT_EQ(grep::walk({folder.path}, failures).size(), 1u);
}

TEST(GrepWalk, FindsAllOfALargeTree) {
  const temporary_folder folder;
  std::size_t count = 0;
  for (int a = 0; a < 30; ++a) {
    for (int b = 0; b < 10; ++b) {
      const std::string sub = "d" + std::to_string(a) + "/d" + std::to_string(b);
      fs::create_directories(folder.path + "/" + sub);
      for (int f = 0; f < 5; ++f, ++count) folder.write(sub + "/f" + std::to_string(f), "x");
    }
  }
  std::vector<grep::path_failure> failures;
  EXPECT_EQ(grep::walk({folder.path}, failures).size(), count);
  EXPECT_TRUE(failures.empty());
}

}  // namespace
}  // namespace gpufs::testing

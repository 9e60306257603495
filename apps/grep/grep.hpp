// gpufs grep: counts the words of a dictionary in files, on a mount's device.
//
// For each file and each word the count equals that of `LC_ALL=C grep -o -w -F -e WORD FILE | wc
// -l` with GNU grep 3.5 or later. With letter_case::ignored it equals that of grep with -i. A match
// is an occurrence with no word character ([A-Za-z0-9_]) directly before or after it. If matches
// overlap, the leftmost counts, and the search continues at its end.
//
// Binary files: GNU grep stops printing matches when it finds a NUL byte in the buffer that it
// searches (it reports "binary file matches" on standard error). Therefore a file with a NUL in its
// first 96 KiB, or with a hole, has no counts. If the first NUL comes later, the lines count that
// were complete before grep's buffer reached it (grep_buffer.hpp: which lines, and where the result
// is approximate).
//
// How it works: one kernel does the whole search. Its blocks take work items (a small file, or a
// part of a large file). They open and read the file, count, and send the counts to a sink:
// window.cuh        moves a window over the item's text
// matcher.cuh       finds the dictionary's words in the window
// tally.cuh         counts by word, and packs the counts into messages (report.hpp)
// line_counter.cuh  counts lines with a match instead
// kernel.cuh        the loop over items
// The dictionary is one hash table. It has the words, and those prefixes of words at which a text
// with the word has a word boundary (dictionary_table.hpp). So a block looks keys up only at the
// ends of words, once for most of them. The host collects the messages (collect.hpp), searches
// files with a late NUL again (search.cpp), and sorts the result.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/gpufs.hpp"

namespace gpufs::grep {

// Longest word, in bytes.
inline constexpr std::size_t word_bytes_max = 255;

struct flat_dictionary;  // dictionary_table.hpp

enum class letter_case {
  heeded,
  ignored  // of A to Z only, as grep does in the C locale
};

// A set of words, prepared for the device. Copies share their data. Thread-safe. If the case is
// ignored, words that differ only in case are one word, in the spelling that was given first.
class dictionary {
 public:
  // Reads the words of files, and adds `more`. One word a line. A line ends with "\n" or "\r\n";
  // the last line needs no end. Empty lines are ignored; a word may occur twice. Throws
  // gpufs::error with the file's path: EINVAL for a word with a NUL or with more than
  // `word_bytes_max` bytes (the text names the line), or the error of open or read.
  static dictionary read(const std::vector<std::string>& files, std::vector<std::string> more = {},
                         letter_case c = letter_case::heeded);

  // Ignores empty words. Throws gpufs::error: EINVAL for a word that has a NUL or a newline, or is
  // too long.
  explicit dictionary(std::vector<std::string> words, letter_case c = letter_case::heeded);

  // Sorted bytewise, without duplicates. `match::word` is an index into it.
  const std::vector<std::string>& words() const;
  const flat_dictionary& flat() const { return *flat_; }

 private:
  std::shared_ptr<const flat_dictionary> flat_;
};

struct file_item {
  std::string path;  // shorter than PATH_MAX
  std::uint64_t
      size_hint;  // In bytes, used to divide the work. A wrong hint costs time, but loses no match.
};

struct match {
  std::uint32_t file;   // index into the list given to search()
  std::uint32_t word;   // index into dictionary::words()
  std::uint64_t count;  // > 0
};

// Leaves new elements of trivial types uninitialized: search() fills millions of them with several
// threads.
template <class T>
struct uninitialized_allocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = uninitialized_allocator<U>;
  };
  template <class U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
  }
};
using match_list = std::vector<match, uninitialized_allocator<match>>;

struct failure {
  std::uint32_t file;
  int error;  // errno
};

struct result {
  match_list matches;  // sorted by path, then by word, both bytewise
  std::vector<failure>
      failures;  // Files that could not be searched. `matches` has none of their matches.
  std::vector<std::uint32_t>
      binary;               // Files with a NUL, sorted. At most a prefix of each was counted.
  std::uint64_t bytes = 0;  // bytes read from files that were searched
  std::uint64_t files = 0;  // files that were searched
};

// For a progress bar: increases while search() runs. A service thread of the mount updates it.
struct progress {
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<std::uint64_t> files_done{0};  // includes failed files
};

// Searches all files. The result has the failures of single files. Throws gpufs::error if the
// search itself fails: ENOMEM, EMFILE (no sink is free), EIO (the device or the service failed),
// EINVAL for more than 2^32 - 1 files, ENOSPC if the counts of one launch need more than a quarter
// of the host's memory (8 bytes for each word of each part of a file, and more for long parts).
// Waits until the search has ended. Several threads may search at the same time.
result search(mount& m, const dictionary& d, const std::vector<file_item>& files,
              progress* p = nullptr);

struct line_result {
  std::vector<std::uint64_t>
      lines;  // By file: lines with at least one match. 0 for files that could not be searched.
  std::vector<failure> failures;
  std::uint64_t bytes = 0;  // bytes read from files that were searched
  std::uint64_t files = 0;  // files that were searched
};

// Counts lines instead: for each file what `LC_ALL=C grep -c -w -F -e WORD...` prints for all words
// together. As in grep, a NUL ends a line. Otherwise like search().
line_result count_lines(mount& m, const dictionary& d, const std::vector<file_item>& files,
                        progress* p = nullptr);

struct path_failure {
  std::string path;
  int error;                     // errno
  const char* reason = nullptr;  // more than the errno's text; static storage, or null
};

// Returns the files that `grep -r` searches: roots that are files, and all regular files below
// roots that are directories, including hidden files. Follows symbolic links that are roots, but
// not those below. Adds what cannot be read to `failures`. EINVAL, with the reason, for a root that
// is neither a regular file nor a directory, and for a root or a directory of a pseudo file system
// such as /proc, whose files have no content before they are read.
std::vector<file_item> walk(const std::vector<std::string>& roots,
                            std::vector<path_failure>& failures);

// Returns whether `path`, under any name, refers to one of the files that `walk` finds.
bool is_searched(const std::vector<std::string>& roots, const std::string& path);

}  // namespace gpufs::grep

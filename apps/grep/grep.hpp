// gpufs grep: counts the words of a dictionary in files, on a mount's device.
//
// For each file and each word the count is that of `LC_ALL=C grep -o -w -F -e WORD FILE | wc -l`
// with GNU grep 3.5 or later; with letter_case::ignored that of grep -i besides. A match is an
// occurrence with no word character ([A-Za-z0-9_]) right before and right after it; of matches that
// overlap, the leftmost counts and the search goes on at its end.
//
// Binary files: GNU grep stops printing matches once it has met a NUL byte in the buffer that it is
// searching (it then says "binary file matches" on standard error). So a file with a NUL in its
// first 96 KiB, or with a hole, counts nothing; with a first NUL further on, the lines count that
// were complete before grep's buffer reached it (grep_buffer.hpp tells which ones these are, and
// where this is approximate).
//
// How it works. One kernel does the whole search. Its blocks take work items (a small file, or a
// part of a large one), open and read the file by themselves, count and send the counts to a sink:
//   window.cuh     moves a window over the item's text
//   matcher.cuh    finds the dictionary's words in the window
//   tally.cuh      counts by word, and packs the counts into messages (report.hpp)
//   line_counter.cuh  counts lines with a match instead
//   kernel.cuh     the loop over items
// The dictionary is one hash table of words and of those beginnings of words at which a text has a
// word boundary (dictionary_table.hpp), so a block looks only at the ends of words: once for most
// of them. The host collects the messages (collect.hpp), searches files with a late NUL again
// (search.cpp), and sorts.
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
  ignored  // of A to Z only, as grep's in the C locale
};

// A set of words, prepared for the device. Copies share their data. Thread-safe. Where the case is
// ignored, words that differ in nothing else are one word, in the spelling that was given first.
class dictionary {
 public:
  // The words of files, and `more`. One word a line, which ends with "\n" or "\r\n"; the last line
  // needs no end. Empty lines are ignored, a word may come twice. Throws gpufs::error with the
  // file's path: EINVAL for a word with a NUL or of more than `word_bytes_max` bytes (the text
  // names the line), or what opening and reading gave.
  static dictionary read(const std::vector<std::string>& files, std::vector<std::string> more = {},
                         letter_case c = letter_case::heeded);

  // Empty words are ignored. Throws gpufs::error: EINVAL for a word with a NUL or a newline, or one
  // that is too long.
  explicit dictionary(std::vector<std::string> words, letter_case c = letter_case::heeded);

  // Sorted bytewise, each once; `match::word` is an index into it.
  const std::vector<std::string>& words() const;
  const flat_dictionary& flat() const { return *flat_; }

 private:
  std::shared_ptr<const flat_dictionary> flat_;
};

struct file_item {
  std::string path;  // shorter than PATH_MAX
  std::uint64_t
      size_hint;  // in bytes, for sharing out the work; a wrong one costs time, never a match
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
      failures;  // files that could not be searched; none of their matches are in `matches`
  std::vector<std::uint32_t>
      binary;               // files with a NUL, of which at most a beginning was counted; sorted
  std::uint64_t bytes = 0;  // read, in files that were searched
  std::uint64_t files = 0;  // searched
};

// Grows while search() runs; for a progress bar. Updated from a service thread of the mount.
struct progress {
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<std::uint64_t> files_done{0};  // failed ones too
};

// Searches all files. Failures of single files are in the result; throws gpufs::error when the
// search itself fails: ENOMEM, EMFILE (no sink is free), EIO (the device or the service failed),
// EINVAL for more than 2^32 - 1 files. Waits until the search has ended. Several threads may search
// at once.
result search(const mount& m, const dictionary& d, const std::vector<file_item>& files,
              progress* p = nullptr);

struct line_result {
  std::vector<std::uint64_t>
      lines;  // of each file, with at least one match; 0 for files that could not be searched
  std::vector<failure> failures;
  std::uint64_t bytes = 0;  // read, in files that were searched
  std::uint64_t files = 0;  // searched
};

// Counts lines instead: of each file what `LC_ALL=C grep -c -w -F -e WORD...` prints with all words
// at once. A NUL ends a line, as it does there. All else is as for search().
line_result count_lines(const mount& m, const dictionary& d, const std::vector<file_item>& files,
                        progress* p = nullptr);

struct path_failure {
  std::string path;
  int error;                     // errno
  const char* reason = nullptr;  // says more than the errno's text; of static storage, or null
};

// The files that `grep -r` searches: roots that are files, and all regular files below roots that
// are directories, hidden ones too. Symbolic links are followed where they are roots, not below. To
// `failures` goes what cannot be read. EINVAL, with the reason: a root that is neither a regular
// file nor a directory; a root or a directory of a pseudo file system such as /proc, whose files
// have no contents before they are read.
std::vector<file_item> walk(const std::vector<std::string>& roots,
                            std::vector<path_failure>& failures);

// Whether `path` leads to one of the files that `walk` finds, under whatever name.
bool is_searched(const std::vector<std::string>& roots, const std::string& path);

}  // namespace gpufs::grep

// How the programs without gpufs divide files among threads and read them.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "grep/grep.hpp"
#include "grep/report.hpp"

namespace gpufs::grep {

// A part of a file. It has the matches that begin in it.
struct file_part {
  std::uint32_t file;
  std::uint64_t begin;  // multiple of 16
  std::uint64_t end;
};

// Returns parts of at most `part_bytes`, a multiple of 16. Parts of the largest files come first,
// so that none is left for the end. All files of one part follow, in order.
std::vector<file_part> cut_files(const std::vector<file_item>& files, std::uint64_t part_bytes);
void add_parts(std::vector<file_part>& to, std::uint32_t file, std::uint64_t bytes,
               std::uint64_t part_bytes);

// State of the files, shared by the threads.
class file_states {
 public:
  explicit file_states(std::size_t files);
  // Relaxed: each value stands for itself. The final reads come after the threads have ended.
  void fail(std::uint32_t file, int error) {
    errors_[file].store(error, std::memory_order_relaxed);
  }
  int error(std::uint32_t file) const { return errors_[file].load(std::memory_order_relaxed); }
  void note_nul(std::uint32_t file, std::uint64_t at);
  std::uint64_t first_nul(std::uint32_t file) const {
    return first_nul_[file].load(std::memory_order_relaxed);
  }

 private:
  std::vector<std::atomic<int>> errors_;
  std::vector<std::atomic<std::uint64_t>> first_nul_;
};

// A text in memory has this many bytes before its part; zeros at the beginning of the file. A
// multiple of 16, so that parts have the same alignment in memory as in their files.
inline constexpr std::uint32_t lead_bytes = 16;
inline constexpr std::uint32_t behind_bytes =
    256;  // The same after the part: the longest word, and one character.

// Owns a descriptor, or none.
class part_file {
 public:
  explicit part_file(const char* path);  // error() reports whether it is open
  ~part_file();
  part_file(const part_file&) = delete;
  part_file& operator=(const part_file&) = delete;
  int error() const { return error_; }

  // Reads `bytes` from `at` on, and `lead_bytes` before and `behind_bytes` after them, as far as
  // the file has them. Returns the number of bytes read from `at` on, or -errno.
  std::int64_t read(char* to, std::uint64_t at, std::uint64_t bytes) const;

 private:
  int fd_;
  int error_ = 0;
};

// Gives the calling thread its own descriptor table, because threads that open many small files
// contend for a shared table. It has copies of the process's descriptors until the thread ends. Has
// no effect where it is not permitted.
void take_own_descriptors();

}  // namespace gpufs::grep

// How the programs without gpufs share out files among threads and read them.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "grep.hpp"
#include "report.hpp"

namespace gpufs::grep {

// A part of a file: of the matches, those that begin there.
struct file_part {
  std::uint32_t file;
  std::uint64_t begin;  // multiple of 16
  std::uint64_t end;
};

// Parts of at most `part_bytes`, a multiple of 16. The largest files' first, so that none is left
// for the end; then all files of one part, in order.
std::vector<file_part> cut_files(const std::vector<file_item>& files, std::uint64_t part_bytes);
void add_parts(std::vector<file_part>& to, std::uint32_t file, std::uint64_t bytes,
               std::uint64_t part_bytes);

// What threads tell each other of files.
class file_states {
 public:
  explicit file_states(std::size_t files);
  // Relaxed: each is a number by itself, and is read for good when the threads have ended.
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

// A text in memory has so many bytes in front of its part, zeros where the file begins: a multiple
// of 16, so that parts are as aligned in memory as they are in files.
inline constexpr std::uint32_t lead_bytes = 16;
inline constexpr std::uint32_t behind_bytes =
    256;  // ... and so many behind it: the longest word, and a character

// A descriptor, or none.
class part_file {
 public:
  explicit part_file(const char* path);  // error() says whether it is open
  ~part_file();
  part_file(const part_file&) = delete;
  part_file& operator=(const part_file&) = delete;
  int error() const { return error_; }

  // Reads `bytes` from `at` on, with those in front of them and behind them (`lead_bytes`,
  // `behind_bytes`), as far as the file has them. Returns the bytes from `at` on, or -errno.
  std::int64_t read(char* to, std::uint64_t at, std::uint64_t bytes) const;

 private:
  int fd_;
  int error_ = 0;
};

// Gives the calling thread a table of descriptors of its own: threads that open many small files
// are in each other's way with one for all. It has copies of the process's descriptors until the
// thread ends. Without effect where it is not allowed.
void take_own_descriptors();

}  // namespace gpufs::grep

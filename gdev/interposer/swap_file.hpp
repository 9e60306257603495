/**
 * A file for what is off the GPU and has no place in the host's memory.
 *
 * It is made in the folder GDEV_SWAP_FOLDER, without a name, so nothing stays behind when the
 * process ends. Its blocks are allocated before anything is written: a full disk is an error of
 * take(), when all data is on the GPU still. One thread at a time may take, write and read; any may
 * give.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace gdev {

class swap_file {
 public:
  static constexpr std::int64_t none = -1;

  /** Returns the offset of a place of `bytes`, a multiple of 4096, or `none`. */
  [[nodiscard]] std::int64_t take(std::size_t bytes);
  void give(std::int64_t place, std::size_t bytes);
  /** Return an errno, or 0. The address is a multiple of 4096. */
  [[nodiscard]] int write(std::int64_t place, const std::byte* from, std::size_t bytes) const;
  [[nodiscard]] int read(std::int64_t place, std::byte* to, std::size_t bytes) const;

 private:
  [[nodiscard]] bool open();

  int file_ = -1;
  bool is_impossible_ = false;
  std::int64_t end_ = 0;
  std::mutex mutex_;                               // guards what follows
  std::multimap<std::size_t, std::int64_t> free_;  // by size
};

}  // namespace gdev

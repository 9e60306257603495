/**
 * A file for what is off the GPU and has no place in the host's memory.
 *
 * It is made in the folder GDEV_SWAP_FOLDER, without a name, so nothing stays behind when the
 * process ends. Its blocks are allocated before anything is written: a full disk is an error of
 * take(), when all data is on the GPU still. It keeps its blocks. One thread at a time may take,
 * write and read; any may give.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "interposer/connection.hpp"
#include "interposer/free_places.hpp"

namespace gdev {

class swap_file {
 public:
  static constexpr std::int64_t none = -1;

  /** Makes the file, unless it is there. Returns false if it cannot be made. */
  [[nodiscard]] bool open();
  /** Returns the offset of a place of `bytes`, a multiple of 4096, or `none`. */
  [[nodiscard]] std::int64_t take(std::size_t bytes);
  void give(std::int64_t place, std::size_t bytes);
  /** In a forked child: the blocks are its parent's. */
  void close() noexcept { file_.close(); }
  /** Return an errno, or 0. The address is a multiple of 4096. */
  [[nodiscard]] int write(std::int64_t place, const std::byte* from, std::size_t bytes) const;
  [[nodiscard]] int read(std::int64_t place, std::byte* to, std::size_t bytes) const;

 private:
  [[nodiscard]] bool grow(std::int64_t end);

  own_descriptor file_;
  bool is_impossible_ = false;
  std::int64_t end_ = 0;  // of the blocks that the file has
  std::mutex mutex_;      // guards what follows
  free_places free_;      // offsets; beyond the end too
};

}  // namespace gdev
